"""The standard library of the running interpreter: real, long documents on every machine that can run this.

A document is a top-level package or module: its .py files in sorted order, each under a line `# file: json/decoder.py`.
Left out: tests, installed packages, and folders of the build.

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
        return Path(self.source or sysconfig.get_path("stdlib")).expanduser()

    def options(self) -> dict[str, Any]:
        return {}

    def splits_by_hash(self) -> bool:
        return True

    def sources(self, split: str) -> list[Source]:
        if not self.root.is_dir():
            raise CorpusError(f"{self.root} is not a folder: give --source the folder of a Python standard library")
        sources = []
        for entry in sorted(self.root.iterdir()):
            if _left_out(entry.name) or (entry.is_file() and entry.suffix != ".py"):
                continue
            name = entry.stem if entry.is_file() else entry.name
            size = sum(path.stat().st_size for path in _files(entry))
            if size:
                sources.append(Source(name, name, split_of(name), size))
        if not sources:
            raise CorpusError(
                f"{self.root} holds no .py file: give --source the folder of a Python {sys.version_info.major} library"
            )
        return [source for source in sources if source.split == split]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        for source in sources:
            yield Document(source.id, source.title, self._text(source))

    def _text(self, source: Source) -> str:
        parts = []
        for entry in (self.root / source.id, self.root / f"{source.id}.py"):
            for path in _files(entry):
                parts.append(f"# file: {path.relative_to(self.root).as_posix()}\n{_decode(path)}\n")
        return "".join(parts)


def _left_out(name: str) -> bool:
    return name in LEFT_OUT or name.startswith("config-")


def _files(entry: Path) -> Iterator[Path]:
    """The .py files of a package or a module, in the order of their relative paths."""
    if entry.is_file():
        yield entry
        return
    found = []
    for folder, folders, files in os.walk(entry):
        folders[:] = [name for name in folders if not _left_out(name)]
        found += [Path(folder) / name for name in files if name.endswith(".py")]
    yield from sorted(found, key=lambda path: path.as_posix())


def _decode(path: Path) -> str:
    """The text of a source file in the encoding that it declares (PEP 263), line ends as they are."""
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        encoding, declared = "utf-8", str(error)
    else:
        declared = encoding
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path} is not {encoding}: byte 0x{data[error.start]:02x} at offset {error.start} ({error.reason}); "
            "mend the file or choose another --source"
        ) from None
    if declared != encoding:
        raise CorpusError(f"{path} declares no encoding that Python knows ({declared}): mend the file")
    return text
