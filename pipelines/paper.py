"""Make a table or figure of a paper: `python -m pipelines.paper --help`. The work is in studies/paper.py."""

from pipelines.terminal import cli
from studies.paper import main

if __name__ == "__main__":
    cli.run(main)
