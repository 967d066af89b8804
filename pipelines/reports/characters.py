"""The text that tokens add to what stands before them.

write = writing_of(tokenizer)
write([17, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from data_prep.tokenizers import Tokenizer, TokenizerError

BYTES = 4
"""Most bytes of a character, and so the most tokens that may share one."""


def writing_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """A function for the text that ids add to the text before them. It keeps a first blank, which `decode` may leave out."""
    try:
        anchor = tokenizer.encode("a").tolist()
    except TokenizerError:
        anchor = [0]  # the vocabulary lacks "a": any of its tokens will do
    before = tokenizer.decode(anchor)
    return lambda ids: tokenizer.decode([*anchor, *ids]).removeprefix(before)
