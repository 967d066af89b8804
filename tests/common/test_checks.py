"""The types of a config's fields, as a model of one's own may write them."""

from __future__ import annotations

from typing import Any, Literal, Optional

import pytest

from common.checks import type_mismatch


@pytest.mark.parametrize(
    ("value", "kind", "needed"),
    [
        (3, Optional[int], ""),  # noqa: UP045
        (None, Optional[int], ""),  # noqa: UP045
        ("x", Optional[int], "a whole number"),  # noqa: UP045
        (0.5, float | None, ""),
        ("a", Literal["a"] | None, ""),
        ("b", Literal["a"] | None, "one of a"),
        (3, dict[str, int] | None, "a dict"),
        ({"a": 1}, dict[str, int], ""),
        ([1], dict[str, int], "a dict"),
        (True, int, "a whole number"),
        ((1, 2), tuple[int, ...], ""),
        ((1, "x"), tuple[int, ...], "a list, each a whole number"),
    ],
)
def test_a_value_has_its_fields_type(value: object, kind: Any, needed: str) -> None:
    assert type_mismatch(value, kind) == needed
