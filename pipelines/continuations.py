"""Continue passages through the recurrence alone: `python -m pipelines.continuations --help`. See studies/continuations.py."""

from pipelines.terminal import cli
from studies.continuations import main

if __name__ == "__main__":
    cli.run(main)
