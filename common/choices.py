"""Choices that models and runs offer in the same words, the target that both ignore, and the file by which an export is known."""

from __future__ import annotations

from typing import Literal

Recompute = Literal["nothing", "layer", "block"]
"""Activations that the backward pass recomputes instead of keeping them (activation checkpointing).

- ``nothing``: every activation of the segment is kept.
- ``layer``: a layer's input is kept, for the whole segment; its inner activations are recomputed. A third more FLOPs.
- ``block``: the stack runs block by block, and keeps only the State between blocks and the output of each block.
  The least memory for long segments; the vertical direction then no longer runs over all blocks at once.
"""

Compile = Literal["no", "layer", "model"]
"""The unit that torch.compile makes one graph of: nothing, each layer by itself, or the whole model."""

IGNORED = -1
"""The target of a position at which nothing is predicted (padding after a document's end, an idle lane)."""

Dtype = Literal["float32", "bfloat16"]
"""The numbers that products are computed in."""

MODEL_MODULE = "modeling_throughline"
"""The module of an exported folder that opens its model. Its config.json names it."""
