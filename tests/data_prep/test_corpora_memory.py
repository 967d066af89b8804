"""Reading a hostile corpus takes no memory to speak of: bombs of 256 MB, a hundred thousand empty members, a million lines."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from data_prep.documents import SPLITS, split_of
from tests.small_archives import put, tar

BOMB_BYTES = 1 << 28
LIMIT_BYTES = BOMB_BYTES // 2
"""Limit of a document: less than the usual one, so that smaller bombs exceed it."""
MAIN = b"\\documentclass{article}\n\\begin{document}\ntext\n\\end{document}\n"


PEAK = """
import sys
from data_prep.corpora import CORPORA
from data_prep.documents import Skipped, scan
def most():  # of this process alone: what getrusage tells is no less than what its parent had
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = most()
name, source, splits, *fields = sys.argv[1:]
corpus = CORPORA[name](source=source, **dict(zip(fields[::2], map(eval, fields[1::2]))))
counts = {}
for split in splits.split():
    for item in corpus.read(corpus.sources(split)):
        item = item if isinstance(item, Skipped) else scan(item)
        if isinstance(item, Skipped):
            counts[item.reason] = counts.get(item.reason, 0) + item.count
print(counts, (most() - before) / 1024)
"""


def peak(name: str, source: Path, splits: tuple[str, ...] = SPLITS, **fields: object) -> tuple[dict[str, int], float]:
    """What is skipped of a corpus, and how many MiB its reading adds to a process."""
    words = [word for field, value in fields.items() for word in (field, repr(value))]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, name, str(source), " ".join(splits), *words],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    counts, _, size = done.stdout.strip().rpartition(" ")
    return eval(counts), float(size)


def bomb(size: int, head: bytes = b"", of: bytes = b"\0") -> bytes:
    """A gzip of `size` bytes of the same."""
    block, deflate = of * (1 << 20), zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    begun = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    piece = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)  # refers to nothing before it: compressed once
    check = zlib.crc32(head)
    for _ in range(size >> 20):
        check = zlib.crc32(block, check)
    end = struct.pack("<LL", check, (len(head) + size) % (1 << 32))
    return b"\x1f\x8b\x08" + bytes(5) + b"\x04\xff" + begun + piece * (size >> 20) + deflate.flush() + end


@pytest.mark.slow
def test_memory_stays_flat_on_bombs(tmp_path: Path) -> None:
    size = BOMB_BYTES
    info, figure = tarfile.TarInfo("big.tex"), tarfile.TarInfo("big.eps")
    info.size = figure.size = size
    members: dict[str, bytes | tarfile.TarInfo] = {
        "1/2101.00001.gz": bomb(size),
        "1/2101.00002.gz": bomb(size, b"\\documentclass{article}\n" * 50, of=b"x"),
        "1/2101.00003.gz": bomb(size, info.tobuf()),
        "1/2101.00004.gz": bomb(size, figure.tobuf()),
        "1/2101.00005.gz": gzip.compress(bomb(size)),
        **{f"1/2102.{i:05}.gz": gzip.compress(MAIN) for i in range(100)},
    }
    put(tmp_path, {"arXiv_src_1.tar": tar(members)})
    counts, grown = peak("arxiv", tmp_path, max_document_bytes=LIMIT_BYTES)
    assert counts == {"too large": 3, "no TeX": 2} and grown < 60


@pytest.mark.long
def test_memory_stays_flat_on_many_empty_members(tmp_path: Path) -> None:
    """Each of an eighth of a million members may keep 60 bytes."""
    paper = tar({"1/2101.00007.gz": gzip.compress(MAIN)})
    put(tmp_path, {"outer/arXiv_src_1.tar": tarfile.TarInfo("1/2101.00001.gz").tobuf() * 125_000 + paper})
    counts, grown = peak("arxiv", tmp_path / "outer", (split_of("2101.00001"),))
    assert counts == {"empty": 125_000} and grown < 7.5
    inner = gzip.compress(tarfile.TarInfo("a.tex").tobuf() * 30_000 + bytes(1024), 1)
    put(tmp_path, {"inner/arXiv_src_1.tar": tar({"1/2101.00001.gz": inner})})
    counts, grown = peak("arxiv", tmp_path / "inner", (split_of("2101.00001"),))
    assert counts == {"no TeX": 1} and grown < 60


@pytest.mark.slow
def test_memory_stays_flat_on_bombs_in_shards(tmp_path: Path) -> None:
    long = bomb(BOMB_BYTES, b'{"text": "', of=b"x")
    lines = gzip.compress(b'{"text": "good"}\n') + long + gzip.compress(b"\n" * 1_000_000)
    put(tmp_path, {"test.jsonl.gz": lines})
    counts, grown = peak("jsonl", tmp_path, ("test",), max_document_bytes=LIMIT_BYTES)
    assert counts == {"too large": 1, "empty": 999_999} and grown < 60


@pytest.mark.slow
def test_memory_stays_flat_on_bombs_in_zips(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "wiki.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("wiki.test.tokens", "w") as stream,
    ):
        stream.write(b" \n = Good = \n \n text \n \n = Bad = \n \n")
        for _ in range(BOMB_BYTES >> 20):
            stream.write((b"x" * 1023 + b"\n") * (1 << 10))
    counts, grown = peak("wikitext", tmp_path / "wiki.zip", ("test",), max_document_bytes=LIMIT_BYTES)
    assert counts == {"too large": 1} and grown < 60
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for i in range(20_000):
            archive.writestr(f"wiki/{i}/wiki.test.tokens", b"")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        peak("wikitext", tmp_path / "many.zip", ("test",))
    assert "has a directory of too many members: it is not the archive of a corpus" in caught.value.stderr
