"""The end of an error message on an unknown name."""

from __future__ import annotations

from common.errors import nearest


def test_names_that_begin_with_the_given_one_are_nearest() -> None:
    known = ["tiny-bytes-rmt", "tiny-bytes-rec-fixed-skip", "tiny-bytes-rec-lstm-skip-two"]
    assert nearest("tiny-bytes-rec", known).startswith("did you mean 'tiny-bytes-rec-fixed-skip'?")
    assert nearest("tiny-bytes-rmd", known).startswith("did you mean 'tiny-bytes-rmt'?")
    assert nearest("unlike", known) == f"known: {', '.join(known)}"
