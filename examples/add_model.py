"""Add a model of your own (gru.py): train it, and check that its State holds all that it remembers.

    python -m pipelines.prepare python-source   # once: the source code of Python, in runs/store
    python -m examples.add_model                # two minutes; takes the options of pipelines.train
    THROUGHLINE_PLUGINS=examples.gru_preset python -m pipelines.evaluate runs/gru

Importing gru_preset.py registers the model and its preset. Commands import the modules that THROUGHLINE_PLUGINS names.
"""

import torch

import examples.gru_preset  # noqa: F401
from examples.gru import GruConfig
from pipelines import train
from pipelines.terminal import cli


def check(config: GruConfig) -> None:
    """Raises AssertionError unless a document in two segments gives the logits of one pass."""
    model = config.build(vocab_size=257)
    tokens_BT = torch.randint(257, (2, 8 * model.block))
    whole, _ = model(tokens_BT)
    for blocks in range(1, 8):
        cut = blocks * model.block
        first, state = model(tokens_BT[:, :cut])
        rest, _ = model(tokens_BT[:, cut:], state)
        torch.testing.assert_close(torch.cat([first, rest], 1), whole)
    print("any two segments give the logits of one pass: State holds all that the model remembers")


def main(words: list[str]) -> int:
    check(GruConfig())
    return train.main(["gru", *words])


if __name__ == "__main__":
    cli.run(main)
