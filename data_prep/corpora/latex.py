r"""The files of a LaTeX paper as one text: the main file, then its inputs in the order of their inclusion, then the rest by name.

    paper({"ms.tex": "\\documentclass{article}\\input{intro}…", "intro.tex": "…"})      # % file: ms.tex … % file: intro.tex …

The main file has \documentclass (or \documentstyle) and \begin{document}; where no file has both, one of them; where none has
either, any file. (A file of the class `subfiles` is part of another.) Among several it is the one that pulls in the most text,
then the one nearest the top, then the first by name. A line, and with it a comment, ends at LF, CR LF or CR.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_SCAN = re.compile(
    r"""\\(?:
        (?:input|include|subfile|subfileinclude)\s*+\{(?P<braced>[^{}\r\n]{1,300}+)\}
      | input\s++(?P<bare>[^\s{}\\%]{1,300}+)
      | (?:sub)?(?:import|inputfrom|includefrom)\*?+\s*+\{(?P<folder>[^{}\r\n]{0,300}+)\}\s*+\{(?P<file>[^{}\r\n]{1,300}+)\}
      | (?P<class>document(?:class|style)\b(?!\s*+(?:\[[^\]\r\n]{0,300}+\])?+\s*+\{subfiles\}))
      | (?P<begin>begin\s*+\{document\})
      | .)
      | %[^\r\n]*+""",
    re.VERBOSE | re.DOTALL,
)
"""One pass over a file: an input, a mark, any other command (so that `\\%` is no comment), or a comment. No backtracking."""

FOLLOWED = 100_000
"""The most inputs, more than any real paper has, that are followed to choose among several main files, the likeliest first."""

MAIN_FOLDERS = 8
"""Folders in which the main file may be, where other files are looked for: those nearest the top."""


@dataclass(frozen=True)
class Scanned:
    """The inputs and the marks of a TeX file."""

    inputs: tuple[str, ...]
    """Names of the files that it inputs, as written, in order, each once."""
    marks: int
    """How many of \\documentclass and \\begin{document} it has."""

    @property
    def is_whole(self) -> bool:
        """Whether it is a main file."""
        return self.marks == 2


def paper(files: Mapping[str, str], main: Sequence[str] = (), scanned: Mapping[str, Scanned] | None = None) -> str:
    """One text of all files, each under a comment line with its path; arguments as those of `order`."""
    return "".join(f"% file: {name}\n{files[name]}\n" for name in order(files, main, scanned))


def input_names(scanned: Mapping[str, Scanned], names: Container[str]) -> set[str]:
    """Those of `names` that the files input, whichever file is the main one."""
    folders = {posixpath.dirname(name) for name, file in scanned.items() if file.marks}
    nearest = sorted(folders, key=lambda folder: (folder.count("/"), folder))[:MAIN_FOLDERS] or [""]
    found = {
        _resolve(written, posixpath.dirname(name), folder, names)
        for name, file in scanned.items()
        for written in file.inputs
        for folder in nearest
    }
    return {name for name in found if name is not None}


def order(
    files: Mapping[str, str], main: Sequence[str] = (), scanned: Mapping[str, Scanned] | None = None
) -> list[str]:
    """The names of all files in reading order.

    Args:
        main: names of the main files, where they are known.
        scanned: what `scan` found in each file, where that is known.
    """
    if not files:
        return []
    if scanned is None:
        scanned = {name: scan(text) for name, text in files.items()}

    @cache
    def inputs(name: str, folder: str) -> tuple[str, ...]:
        """The files that a file inputs, in order, if the main file is in `folder`."""
        found = (_resolve(written, posixpath.dirname(name), folder, files) for written in scanned[name].inputs)
        return tuple(dict.fromkeys(name for name in found if name is not None))

    if main:
        reached = [name for first in main for name in _reach(first, inputs)]
        return list(dict.fromkeys([*reached, *sorted(files)]))
    most = max(file.marks for file in scanned.values())
    mains = [name for name, file in scanned.items() if file.marks == most]
    if len(mains) > 1:
        direct = {name: inputs(name, posixpath.dirname(name)) for name in files}
        parts = {other for name, others in direct.items() for other in others if other != name}
        size = {name: len(files[name]) + sum(len(files[other]) for other in direct[name]) for name in mains}
        mains.sort(key=lambda name: (name in parts, -size[name], name.count("/"), name))
    orders: dict[str, list[str]] = {}
    left = FOLLOWED
    for candidate in mains:
        orders[candidate] = list(_reach(candidate, inputs))
        left -= sum(1 + len(scanned[name].inputs) for name in orders[candidate])
        if left < 0:
            break

    def rank(candidate: str) -> tuple[int, int, str]:
        """The most text first, then the nearest to the top, then by name."""
        return -sum(len(files[name]) for name in orders[candidate]), candidate.count("/"), candidate

    chosen = orders[min(orders, key=rank)]
    return [*chosen, *sorted(set(files) - set(chosen))]


def scan(text: str) -> Scanned:
    """The inputs and marks of a file."""
    inputs = []
    marks = set()
    for match in _SCAN.finditer(text):
        kind = match.lastgroup
        if kind in ("class", "begin"):
            marks.add(kind)
        elif kind == "file":
            inputs.append(posixpath.join(match["folder"].strip(), match["file"].strip()))
        elif kind is not None:
            inputs.append(match[kind].strip().strip('"'))
    return Scanned(tuple(dict.fromkeys(inputs)), len(marks))


def _reach(main: str, inputs: Callable[[str, str], Iterable[str]]) -> Iterator[str]:
    """A file and the files that it inputs, depth first, each once."""
    folder = posixpath.dirname(main)
    seen = {main}
    yield main
    waiting = [iter(inputs(main, folder))]
    while waiting:
        name = next((name for name in waiting[-1] if name not in seen), None)
        if name is None:
            waiting.pop()
        else:
            seen.add(name)
            yield name
            waiting.append(iter(inputs(name, folder)))


def _resolve(written: str, own: str, main: str, files: Container[str]) -> str | None:
    """The file that an input names: beside the main file, else beside the file that inputs it, else from the top."""
    for folder in dict.fromkeys((main, own, "")):
        path = posixpath.normpath(posixpath.join(folder, written))
        for name in (path, f"{path}.tex"):
            if name in files:
                return name
    return None
