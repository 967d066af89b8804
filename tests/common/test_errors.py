"""The end of an error message on an unknown name."""

from __future__ import annotations

from common.errors import nearest


def test_names_that_begin_with_the_given_one_are_nearest() -> None:
    known = ["tiny-bytes-rmt", "tiny-bytes-rec-fixed-skip", "tiny-bytes-rec-lstm-skip-two"]
    assert nearest("tiny-bytes-rec", known).startswith("did you mean 'tiny-bytes-rec-fixed-skip'?")
    assert nearest("tiny-bytes-rmd", known).startswith("did you mean 'tiny-bytes-rmt'?")
    assert nearest("unlike", known) == f"known: {', '.join(known)}"


def test_a_field_is_nearest_by_its_name_without_its_group() -> None:
    known = ["root", "optim.lr", "optim.recurrent_lr_scale", "schedule.warmup_steps"]
    assert nearest("lr", known).startswith("did you mean 'optim.lr'?")
    assert nearest("warmup", known).startswith("did you mean 'schedule.warmup_steps'?")
    assert nearest("xyz", known) == f"known: {', '.join(known)}"
