"""The standard library of the running interpreter: real, long documents on every machine that can run this.

A document is a top-level package or module: its .py files in sorted order, each under a line `# file: json/decoder.py`. A module
beside a package of its name belongs to the same document.
Left out: tests, installed packages, folders of the build, and hidden files and folders.

    python -m pipelines.prepare python-source --tokenizer sentencepiece:2048
"""

from __future__ import annotations

import io
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from common.places import Place
from data_prep.corpora.encodings import decode_utf8, refuse_nuls, refuse_packed
from data_prep.corpora.files import check_name, is_hidden
from data_prep.documents import CorpusError, Document, Source, split_of

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}


@dataclass(frozen=True)
class PythonSource:
    """The source of Python's standard library; needs no download."""

    name: ClassVar[str] = "python-source"

    source: str = ""
    """Folder to read instead of the running interpreter's standard library."""

    @property
    def root(self) -> Path:
        return Path(os.path.expanduser(self.source or sysconfig.get_path("stdlib")))

    def options(self) -> dict[str, Any]:
        return {}

    def splits_by_hash(self) -> bool:
        return True

    def sources(self, split: str) -> list[Source]:
        """One source for each module of this Python's standard library."""
        if not self.root.is_dir():
            raise CorpusError(f"{self.root} is not a folder: give --source the folder of a Python standard library")
        sizes: dict[str, int] = {}
        for entry in sorted(self.root.iterdir()):
            name = entry.stem if entry.is_file() else entry.name
            for path in _files(entry):
                check_name(Place.parse(self.root), path.relative_to(self.root).as_posix())
                sizes[name] = sizes.get(name, 0) + path.stat().st_size
        sources = [Source(name, name, split_of(name), size) for name, size in sizes.items() if size]
        if not sources:
            raise CorpusError(
                f"{self.root} holds no .py file: give --source the folder of a Python {sys.version_info.major} library"
            )
        return [source for source in sources if source.split == split]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        for source in sources:
            yield Document(source.id, source.title, self._text(source))

    def _text(self, source: Source) -> str:
        package = self.root / source.id
        module = self.root / f"{source.id}.py"
        paths: list[Path] = []
        if package.is_dir():
            paths += _files(package)
        if module.is_file():
            paths += _files(module)
        return "".join(f"# file: {path.relative_to(self.root).as_posix()}\n{_decode(path)}\n" for path in paths)


def _left_out(name: str) -> bool:
    return name in LEFT_OUT or name.startswith("config-") or is_hidden(name)


def _files(entry: Path) -> Iterator[Path]:
    """The .py files of a package or a module, in the order of their relative paths."""
    if _left_out(entry.name):
        return
    if entry.is_file():
        yield from [entry] if entry.suffix == ".py" else []
        return
    found = []
    for folder, folders, files in os.walk(entry):
        folders[:] = [name for name in folders if not _left_out(name)]
        found += [Path(folder) / name for name in files if name.endswith(".py") and not is_hidden(name)]
    yield from sorted(found, key=lambda path: path.as_posix())


def _decode(path: Path) -> str:
    """The text of a source file in the encoding that it declares (PEP 263), line ends as they are."""
    data = path.read_bytes()
    refuse_packed(data, str(path))
    lines = io.BytesIO(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    try:
        encoding, _ = tokenize.detect_encoding(lines.readline)
        text = data.decode(encoding)
        text.encode()
    except (
        SyntaxError,
        LookupError,
        ValueError,
    ) as error:  # also a codec that is not for text, or whose result is not valid text
        decode_utf8(data, str(path))  # its error says more if the file is not UTF-8
        reason = " ".join(str(error).split())
        raise CorpusError(f"{path} cannot be read in the encoding that it declares ({reason}): fix the file") from None
    refuse_nuls(data, str(path))
    return text
