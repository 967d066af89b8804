"""Read the normalization rules inside a SentencePiece model, to prove where a text may be cut.

SentencePiece keeps its rules as a `precompiled_charsmap`: the size of a trie in bytes (uint32), the trie (a darts-clone double
array of uint32 units), and the replacements. It normalizes from left to right, always by the longest key that matches.
"""

from __future__ import annotations

import numpy as np

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""ASCII without blanks and control characters."""

SPACE = 0x20

MAX_KEY_LENGTH = 256
"""The most bytes of a rule's key; a model with a longer one is not read."""


def kept_before_a_space(charsmap: bytes, characters: str = PRINTABLE) -> str:
    """The characters c for which "c d", with any of the characters as d, stays unchanged whatever stands around it.

    That holds if no key extends past a space (so no rule reads both sides), none is the space alone or begins with a space and the
    first byte of one of them (so the space stays), and none ends in c (so c is kept). Empty if the rules cannot be read.

    Args:
        characters: of three bytes at most in UTF-8, the space not among them.
    """
    if not charsmap:
        return characters
    size = int.from_bytes(charsmap[:4], "little")
    if size % 4 or not 0 < size <= len(charsmap) - 4:
        return ""
    units = np.frombuffer(charsmap[4 : 4 + size], dtype="<u4").astype(np.int64)
    labels = units & 0x800000FF  # the byte that leads to a unit; above 0xFF where the unit is a value
    bases = np.arange(len(units)) ^ labels  # a child stands at its parent's base, with its own label xor-ed in
    order = np.argsort(bases, kind="stable")
    order = order[(labels[order] > 0) & (labels[order] <= 0xFF)]
    bases = bases[order]
    encoded = [character.encode() for character in characters]
    firsts = np.array(sorted({data[0] for data in encoded}))

    # The last byte of each key, the last two, the last three.
    ends: tuple[set[int], set[int], set[int]] = (set(), set(), set())
    # Each node, and the two last bytes of what leads to it.
    nodes = before = np.zeros(1, dtype=np.int64)
    space = np.int64(-1)
    for depth in range(MAX_KEY_LENGTH):
        base = nodes ^ (units[nodes] >> 10) << ((units[nodes] & (1 << 9)) >> 6)
        first = np.searchsorted(bases, base)
        last = np.searchsorted(bases, base, side="right")
        count = last - first
        if not count.any():
            return "".join(data.decode() for data in encoded if int.from_bytes(data) not in ends[len(data) - 1])
        parents = np.repeat(nodes, count)
        children = order[np.arange(len(parents)) + np.repeat(first - (np.cumsum(count) - count), count)]
        label = labels[children]
        is_key = (units[children] >> 8) & 1 == 1
        if depth == 0 and (is_key & (label == SPACE)).any():
            return ""  # the space is replaced
        if depth > 0 and (label == SPACE).any():
            return ""  # a key extends past a space
        if ((parents == space) & np.isin(label, firsts)).any():
            return ""  # a key begins with a space and one of the characters
        spelt = np.repeat(before, count) << 8 | label
        for number, last_bytes in enumerate(ends, 1):
            last_bytes.update(np.unique(spelt[is_key] & (1 << 8 * number) - 1).tolist())
        if depth == 0 and (label == SPACE).any():
            space = children[label == SPACE][0]
        pairs = np.unique(children << 16 | spelt & 0xFFFF)  # keys with equal ends share nodes
        nodes = pairs >> 16
        before = pairs & 0xFFFF
    return ""
