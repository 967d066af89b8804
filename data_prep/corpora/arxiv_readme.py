"""Reads arXiv's 00README, which names a paper's main files, and the files that are no part of it.

read("00README.XXX", b"ms.tex toplevelfile\\nold.tex ignore\\n")           # Directives(("ms.tex",), {"old.tex"})

The old form, `00README.XXX`, has lines of a file's name and a word; the new one is JSON or YAML, with the same under `sources`
(https://info.arxiv.org/help/00README.html).
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field

import yaml

from data_prep.corpora.encodings import as_utf8

NAME = re.compile(r"00README(\.(xxx|json|ya?ml))?", re.IGNORECASE)
MAX_BYTES = 1 << 16
"""A larger one is no 00README: those of arXiv have some hundred bytes."""


@dataclass(frozen=True)
class Directives:
    """The contents of a 00README; names are relative to its folder, the paper's."""

    main: tuple[str, ...] = ()
    """The files that are compiled, in the order of the paper; empty where it names none."""
    ignored: frozenset[str] = field(default_factory=frozenset)


def is_readme(name: str) -> bool:
    """Whether a file of a paper is its 00README, by its path in the paper."""
    return NAME.fullmatch(name) is not None


def read(name: str, data: bytes) -> Directives:
    """The directives in a 00README. Raises ValueError if it is malformed."""
    text = as_utf8(data).decode(errors="replace")
    ending = posixpath.splitext(name)[1].lower()
    if ending not in (".json", ".yaml", ".yml"):
        return _lines(text)
    try:
        if ending != ".json" and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError(f"{name} has aliases, whose copies may take any memory")
        return _sources(json.loads(text) if ending == ".json" else yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{name} is not a 00README ({type(error).__name__})") from None


def _lines(text: str) -> Directives:
    words = [line.rsplit(maxsplit=1) for line in text.splitlines()]
    pairs = [(posixpath.normpath(pair[0]), pair[1].lower()) for pair in words if len(pair) == 2]
    main = sorted(name for name, word in pairs if word == "toplevelfile")
    return Directives(tuple(main), frozenset(name for name, word in pairs if word == "ignore"))


def _sources(record: dict[str, list[dict[str, str]]]) -> Directives:
    sources = record.get("sources") or []
    pairs = [(posixpath.normpath(source["filename"]), source.get("usage")) for source in sources]
    main = [name for name, usage in pairs if usage == "toplevel"]
    return Directives(tuple(main), frozenset(name for name, usage in pairs if usage == "ignore"))
