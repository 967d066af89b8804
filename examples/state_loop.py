"""Carry State through a long document in a plain PyTorch loop.

    python -m examples.state_loop        # half a minute on one core

A document begins with a key. Letters follow, and questions: which key was it? The model sees 8 tokens back and reads the
document in segments of 32. So after the first segment, only State can hold the answer.
"""

import argparse
import sys

import torch
from torch.optim import AdamW, Optimizer

from recur_models import IGNORED, RecConfig, RecurrentModel, detach

KEYS = 8  # tokens 0 to 7; the letters are tokens 8 to 11
QUESTION = 12
SIZE = {"layers": 1, "d_model": 32, "heads": 2, "head_dim": 16, "mlp_dim": 64, "window": 8, "dropout": 0.0}


def read(model: RecurrentModel, segments: int, carry: bool = True, optimizer: Optimizer | None = None) -> float:
    """Read 32 new documents side by side; train if there is an optimizer. Returns the loss after the first segment."""
    keys = torch.randint(KEYS, (32, 1))
    documents = torch.cat([keys, torch.randint(KEYS, QUESTION + 1, (32, segments * 32 - 1))], dim=1)
    answers = torch.where(documents == QUESTION, keys, IGNORED)  # no loss where nothing is asked
    losses = []
    state = None  # a new document: the model begins with its initial State
    for tokens, targets in zip(documents.split(32, dim=1), answers.split(32, dim=1), strict=True):
        nats, state = model(tokens, state, targets_BT=targets)  # State goes in, and comes out
        loss = nats.sum() / (targets != IGNORED).sum()
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = detach(state) if carry else None  # keep the values, cut the gradient
        losses.append(loss.item())
    return sum(losses[1:]) / (segments - 1)


def main(words: list[str]) -> None:
    """Train, then read longer documents with State carried, and with State reset at each segment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="batches of documents to train on (default: 200)")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
    model = RecConfig(recurrent_layers=(1,), states=4, gate="lstm", **SIZE).build(vocab_size=QUESTION + 1)
    optimizer = AdamW(model.parameters(), lr=1.2e-2)
    for step in range(parser.parse_args(words).steps):
        loss = read(model, segments=3, optimizer=optimizer)
        if step % 20 == 0:
            print(f"batch {step}: {loss:.3f} nats per question")
    with torch.no_grad():
        carried, reset = (read(model, segments=6, carry=carry) for carry in (True, False))
    print(f"guessing costs ln 8 = 2.079 nats, State carried {carried:.3f}, State reset {reset:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
