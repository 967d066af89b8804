"""Windows over a document, with a whole one at its beginning and with one as long as a block."""

from __future__ import annotations

import pytest

from benchmarks.first_window import spans


@pytest.mark.parametrize("tokens", [1, 5, 8, 11, 12, 40])
@pytest.mark.parametrize("first", [8, 12], ids=["ours", "the paper's"])
def test_each_token_is_predicted_once_after_as_much_as_a_window_holds(tokens: int, first: int) -> None:
    windows = spans(tokens, window=12, overlap=4, first=first)
    assert [at for _, own, end in windows for at in range(own, end)] == list(range(tokens))
    assert windows[0][:2] == (0, 0) and windows[0][2] == min(first, tokens)
    for begin, own, end in windows[1:]:
        assert own - begin == 4 and end - begin <= 12 and (end - begin == 12 or end == tokens)
