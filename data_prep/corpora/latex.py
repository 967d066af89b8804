r"""The files of a LaTeX paper as one text: the main file, then its inputs in the order of their inclusion, then the rest by name.

    paper({"ms.tex": "\\documentclass{article}\\input{intro}…", "intro.tex": "…"})      # % file: ms.tex … % file: intro.tex …

The main file has \documentclass (or \documentstyle) and \begin{document}; where no file has both, one of them; where none has
either, any file. (A file of the class `subfiles` is part of another.) Of several it is the one that pulls in the most text, then
the one nearest the top, then the first by name.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SCAN = re.compile(
    r"""\\(?:
        (?:input|include|subfile|subfileinclude)\s*\{(?P<braced>[^{}\n]{1,300})\}
      | input\s+(?P<bare>[^\s{}\\%]{1,300})
      | (?:sub)?(?:import|inputfrom|includefrom)\*?\s*\{(?P<folder>[^{}\n]{0,300})\}\s*\{(?P<file>[^{}\n]{1,300})\}
      | (?P<class>document(?:class|style)\b(?!\s*(?:\[[^\]\n]{0,300}\])?\s*\{subfiles\}))
      | (?P<begin>begin\s*\{document\})
      | .)
      | %[^\n]*""",
    re.VERBOSE | re.DOTALL,
)
"""One pass over a file: what matters here, any other command (so that `\\%` is no comment), or a comment."""


@dataclass(frozen=True)
class _File:
    inputs: tuple[str, ...]
    """As written, in order."""
    marks: int
    """How many of \\documentclass and \\begin{document} it has."""


def paper(files: Mapping[str, str]) -> str:
    """One text of all files, each under a comment line with its path."""
    return "".join(f"% file: {name}\n{files[name]}\n" for name in order(files))


def order(files: Mapping[str, str]) -> list[str]:
    """The names of all files in reading order."""
    if not files:
        return []
    scanned = {name: _scan(text) for name, text in files.items()}
    most = max(file.marks for file in scanned.values())
    reached = {name: list(_reach(name, scanned)) for name in scanned if scanned[name].marks == most}

    def rank(name: str) -> tuple[int, int, str]:
        return -sum(len(files[other]) for other in reached[name]), name.count("/"), name

    first = reached[min(reached, key=rank)]
    return [*first, *sorted(set(files) - set(first))]


def _scan(text: str) -> _File:
    inputs, marks = [], set()
    for match in _SCAN.finditer(text):
        kind = match.lastgroup
        if kind in ("class", "begin"):
            marks.add(kind)
        elif kind == "file":
            inputs.append(posixpath.join(match["folder"].strip(), match["file"].strip()))
        elif kind is not None:
            inputs.append(match[kind].strip().strip('"'))
    return _File(tuple(inputs), len(marks))


def _reach(main: str, scanned: Mapping[str, _File]) -> Iterator[str]:
    """A file and what it inputs, depth first, each once."""
    seen = {main}
    yield main
    waiting = [(main, iter(scanned[main].inputs))]
    while waiting:
        name, inputs = waiting[-1]
        for written in inputs:
            found = _resolve(written, posixpath.dirname(name), posixpath.dirname(main), scanned)
            if found is not None and found not in seen:
                seen.add(found)
                yield found
                waiting.append((found, iter(scanned[found].inputs)))
                break
        else:
            waiting.pop()


def _resolve(written: str, own: str, main: str, scanned: Mapping[str, _File]) -> str | None:
    """The file that an input names: beside the main file, else beside the file that says so, else from the top."""
    for folder in (main, own, ""):
        path = posixpath.normpath(posixpath.join(folder, written))
        for name in (path, f"{path}.tex"):
            if name in scanned:
                return name
    return None
