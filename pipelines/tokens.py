"""Compare models token by token: `python -m pipelines.tokens --help`. The work is in studies/tokens.py."""

from pipelines.terminal import cli
from studies.tokens import main

if __name__ == "__main__":
    cli.run(main)
