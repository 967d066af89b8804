"""Small archives for tests: tars, gzips and zips with whatever is in them, also what should not be."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from data_prep.documents import SPLITS, Corpus, Document, Scanned, Skipped
from data_prep.scanning import ScannedDocuments, scan_group


def tar(members: Mapping[str, bytes | tarfile.TarInfo], format: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of files, by name; a TarInfo stands for itself: a link, a device."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members.items():
            if isinstance(data, tarfile.TarInfo):
                archive.addfile(data)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def packed(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A gzipped tar."""
    return gzip.compress(tar(members), mtime=0)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def documents_of(corpus: Corpus, split: str) -> list[Document]:
    """The documents of a split, less what is skipped."""
    return [item for item in corpus.read(corpus.sources(split)) if isinstance(item, Document)]


def read_all(corpus: Corpus) -> tuple[dict[str, str | bytes], dict[str, int]]:
    """Every text of a corpus by its id, whatever its split; and how many things were skipped, by reason."""
    texts: dict[str, str | bytes] = {}
    skipped: dict[str, int] = {}
    for split in SPLITS:
        for item in corpus.read(corpus.sources(split)):
            if isinstance(item, Document):
                assert item.id not in texts
                texts[item.id] = item.text
            else:
                assert isinstance(item, Skipped)
                skipped[item.reason] = skipped.get(item.reason, 0) + item.count
    return texts, skipped


def scan_all(corpus: Corpus, split: str) -> list[Scanned]:
    """The documents of a split as the scan sees them; empty ones are none."""
    sources = corpus.sources(split)
    return list(ScannedDocuments(sources, scan_group(corpus, sources)))


def put(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files below a folder. Returns the folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)
