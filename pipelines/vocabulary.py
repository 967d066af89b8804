"""Compare tokenizers on a split: `python -m pipelines.vocabulary --help`. The work is in studies/vocabulary.py."""

from pipelines.terminal import cli
from studies.vocabulary import main

if __name__ == "__main__":
    cli.run(main)
