"""Read the normalization rules inside a SentencePiece model, to prove where a text may be cut.

SentencePiece keeps its rules as a `precompiled_charsmap`: the size of a trie in bytes (uint32), the trie (a darts-clone double
array of uint32 units), and the replacements. It normalizes from left to right, always by the longest key that matches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""ASCII without blanks and control characters."""

SPACE = 0x20

MAX_KEY_LENGTH = 256
"""Bytes of a rule's key, from which on a model is not read."""


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
    trie = np.frombuffer(charsmap[4 : 4 + size], dtype="<u4").astype(np.int64)
    encoded = [character.encode() for character in characters]
    space_and_first = np.array(sorted({SPACE << 8 | data[0] for data in encoded}))
    # The last byte of each key, the last two, the last three.
    ends: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    for length, (last_three, is_key) in enumerate(prefixes(trie), 1):
        if length == MAX_KEY_LENGTH:
            return ""
        ends_in_space = last_three & 0xFF == SPACE
        if length == 1 and (ends_in_space & is_key).any():
            return ""  # the space is replaced
        if length > 1 and ends_in_space.any():
            return ""  # a key extends past a space
        if length == 2 and np.isin(last_three, space_and_first).any():
            return ""  # a key begins with a space and one of the characters
        for number, last_bytes in ends.items():
            last_bytes.update(np.unique(last_three[is_key] & (1 << 8 * number) - 1).tolist())
    return "".join(data.decode() for data in encoded if int.from_bytes(data) not in ends[len(data)])


def prefixes(trie: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The prefixes of the trie's keys: all of one byte, then all of two, and so on, without an end where the trie is damaged.

    Yields, for each prefix of that length, its last three bytes as a number (the first byte the highest), and whether it is a key.
    Prefixes may stand for several that end alike.
    """
    labels = trie & 0x800000FF  # the byte that leads to a unit; above 0xFF where the unit is a value
    bases = np.arange(len(trie)) ^ labels  # a child stands at its parent's base, with its own label xor-ed in
    by_base = np.argsort(bases, kind="stable")
    by_base = by_base[(labels[by_base] > 0) & (labels[by_base] <= 0xFF)]
    bases = bases[by_base]

    nodes = last_two = np.zeros(1, dtype=np.int64)  # the root, to which no byte leads
    while True:
        units = trie[nodes]
        base = nodes ^ (units >> 10) << ((units & (1 << 9)) >> 6)
        first = np.searchsorted(bases, base)
        count = np.searchsorted(bases, base, side="right") - first
        if not count.any():
            return
        nth_child = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        children = by_base[np.repeat(first, count) + nth_child]
        last_three = np.repeat(last_two, count) << 8 | labels[children]
        yield last_three, (trie[children] >> 8) & 1 == 1
        distinct = np.unique(children << 16 | last_three & 0xFFFF)  # keys with equal ends share nodes
        nodes = distinct >> 16
        last_two = distinct & 0xFFFF
