"""Packed files, in every corpus: read where the packing is known, refused by its name where it is not, never taken for text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import packing
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.enwik8 import Enwik8
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.python_source import PythonSource
from data_prep.corpora.text import Text
from data_prep.documents import CorpusError
from data_prep.packing import READ, packing_of, unpacked
from tests.small_archives import packed, put, read_all, tar, zipped, zstd

TEXT = b"one line of text\n" * 300
LINES = b'{"text": "one"}\n{"text": "two"}\n'
TEX = b"\\documentclass{article}\\begin{document}text\\end{document}"


def lzma_alone(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_ALONE)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "lzma": lzma_alone, "zstd": zstd,
}  # fmt: skip
OTHERS = {
    "zip": zipped({"a.txt": TEXT}), "7z": b"7z\xbc\xaf\x27\x1c\0\4", "rar": b"Rar!\x1a\x07\x01\0", "lz4": b"\x04\x22\x4d\x18\x64",
    "lzip": b"LZIP\x01\x0c", "compress": b"\x1f\x9d\x90a", "tar": tar({"a.txt": TEXT}),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_enwik8_is_unpacked(tmp_path: Path, name: str) -> None:
    put(tmp_path, {"enwik8.packed": PACK[name](TEXT)})
    texts, _ = read_all(Enwik8(source=str(tmp_path / "enwik8.packed")))
    assert b"".join(texts.values()) == TEXT  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*READ, *OTHERS])
@pytest.mark.parametrize(
    ("file", "corpus"),
    [
        ("a.txt", lambda folder: Text(source=str(folder))),
        ("train/1.txt", lambda folder: Pg19(source=str(folder))),
        ("metadata.csv", lambda folder: Pg19(source=str(put(folder, {"train/2.txt": "text"})))),
        ("a.py", lambda folder: PythonSource(source=str(folder))),
        ("a.parquet", lambda folder: Parquet(source=str(folder))),
        ("arXiv_src_2101_001.tar", lambda folder: Arxiv(source=str(folder))),
    ],
)
def test_what_should_be_plain_is_refused(tmp_path: Path, name: str, file: str, corpus: Callable) -> None:
    if name == "tar" and file.endswith(".tar"):
        return
    put(tmp_path, {file: PACK[name](TEXT) if name in PACK else OTHERS[name] + bytes(300)})
    with pytest.raises(CorpusError, match=rf"{Path(file).name} is packed \({name}\): unpack it, and give the file"):
        read_all(corpus(tmp_path))


@pytest.mark.parametrize("name", OTHERS)
def test_an_unknown_packing_is_no_text(tmp_path: Path, name: str) -> None:
    """Neither by itself nor inside one that is known; in a folder of papers it is counted."""
    data = OTHERS[name] + bytes(300)
    if name != "zip":  # enwik8 is released in one
        put(tmp_path, {"enwik8": data})
        with pytest.raises(CorpusError, match=rf"enwik8 is packed \({name}\)"):
            read_all(Enwik8(source=str(tmp_path / "enwik8")))
    put(tmp_path, {"inside.gz": gzip.compress(data), "inside.zip": zipped({"x": data}), "a/a.jsonl": data})
    with pytest.raises(CorpusError, match=rf"the content of .*inside\.gz is packed \({name}\)"):
        read_all(Enwik8(source=str(tmp_path / "inside.gz")))
    with pytest.raises(CorpusError, match=rf"x in .*inside\.zip is packed \({name}\)"):
        read_all(Enwik8(source=str(tmp_path / "inside.zip")))
    with pytest.raises(CorpusError, match=rf"a\.jsonl is packed \({name}\)"):
        read_all(JsonLines(source=str(tmp_path / "a")))
    if name != "tar":
        put(tmp_path / "papers", {"arXiv_src_1.tar": tar({"2101.00001.gz": data, "2101.00002.gz": gzip.compress(TEX)})})
        texts, skipped = read_all(Arxiv(source=str(tmp_path / "papers")))
        assert list(texts) == ["2101.00002"] and skipped == {f"packed ({name})": 1}


def test_a_zip_from_a_mac_holds_one_file(tmp_path: Path) -> None:
    put(tmp_path, {"enwik8.zip": zipped({"enwik8": TEXT, "__MACOSX/._enwik8": b"\0\5\x16\7"})})
    assert b"".join(read_all(Enwik8(source=str(tmp_path / "enwik8.zip")))[0].values()) == TEXT  # type: ignore[arg-type]


@pytest.mark.parametrize(("ending", "name"), [(".gz", "gzip"), (".bz2", "bzip2"), (".xz", "xz"), (".zst", "zstd")])
def test_json_lines_and_papers_by_any_packing(tmp_path: Path, ending: str, name: str) -> None:
    put(tmp_path / "lines", {f"train.jsonl{ending}": PACK[name](LINES)})
    assert list(read_all(JsonLines(source=str(tmp_path / "lines")))[0].values()) == ["one", "two"]
    inside = PACK[name](tar({"ms.tex": TEX}))
    put(
        tmp_path / "papers",
        {f"2101.00001.tar{ending}": inside, "arXiv_src_1.tar": tar({f"2101.00002{ending}": inside})},
    )
    assert set(read_all(Arxiv(source=str(tmp_path / "papers")))[0]) == {"2101.00001", "2101.00002"}


def test_a_packed_bulk_archive_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"arXiv_src_2101_001.tar.gz": packed({"2101.00001.gz": gzip.compress(TEX)})})
    with pytest.raises(CorpusError, match=r"arXiv_src_2101_001\.tar\.gz is packed: unpack it"):
        Arxiv(source=str(tmp_path)).sources("train")


@given(st.sampled_from(READ), st.binary(max_size=300), st.integers(0, 70_000), st.integers(1, 400), st.booleans())
def test_streams_and_zeros_that_follow(name: str, data: bytes, zeros: int, size: int, twice: bool) -> None:
    """Zeros behind a packed stream, as tapes leave them, are nothing; a second stream is more of the same."""
    if name == "zstd":  # pyarrow reads it, and knows no zeros
        zeros = 0
    twice = twice and name != "lzma"
    whole = PACK[name](data) * (1 + twice) + bytes(zeros)
    stream = unpacked(io.BytesIO(whole), name)
    read = b""
    piece = stream.read(size)
    while piece:
        read += piece
        piece = stream.read(size)
    assert read == data * (1 + twice)


@pytest.mark.parametrize("name", READ)
def test_what_is_damaged_raises(name: str) -> None:
    whole = PACK[name](TEXT)
    for data in (whole[:-1], whole[: len(whole) // 2], whole + b"junk" * 9):
        with pytest.raises((EOFError, ValueError, OSError)):
            unpacked(io.BytesIO(data), name).read(1 << 20)
            raise AssertionError(f"{len(data)} of {len(whole)} bytes")


def test_every_piece_is_given_before_an_early_end_is() -> None:
    """zlib may hold much when it has taken all its input."""
    data = bytes(5_000_000)
    assert unpacked(io.BytesIO(gzip.compress(data)), "gzip").read() == data


def test_gzip_with_zeros_behind_it(tmp_path: Path) -> None:
    put(tmp_path, {"enwik8.gz": gzip.compress(TEXT) + bytes(10_000)})
    assert b"".join(read_all(Enwik8(source=str(tmp_path / "enwik8.gz")))[0].values()) == TEXT  # type: ignore[arg-type]
    put(tmp_path / "papers", {"2101.00001.gz": packed({"ms.tex": TEX}) + bytes(512)})
    texts, skipped = read_all(Arxiv(source=str(tmp_path / "papers")))
    assert list(texts) == ["2101.00001"] and skipped == {}


def test_a_tar_without_blocks_at_its_end(tmp_path: Path) -> None:
    """Inside an intact gzip it is whole; one that ends within a member is not."""
    whole = tar({"ms.tex": TEX, "b.tex": b"b" * 600})
    members = whole[: whole.rindex(b"b" * 600) + 1024]
    assert len(members) % 512 == 0 and not members.endswith(bytes(1024))
    put(tmp_path, {"2101.00001.gz": gzip.compress(members), "2101.00002.gz": gzip.compress(members[:-512])})
    texts, skipped = read_all(Arxiv(source=str(tmp_path)))
    assert list(texts) == ["2101.00001"] and skipped == {"damaged": 1}
    assert "b" * 600 in str(texts["2101.00001"])
    flipped = bytearray(gzip.compress(members))
    flipped[-6] ^= 1  # its checksum
    put(tmp_path, {"2101.00001.gz": bytes(flipped)})
    assert read_all(Arxiv(source=str(tmp_path))) == ({}, {"damaged": 2})


def long_window(data: bytes) -> bytes:
    """A zstd frame of one raw block whose header asks for a window of 2 GiB, as `zstd --long=31` writes it."""
    assert len(data) < 1 << 17
    return b"\x28\xb5\x2f\xfd\0\xa8" + (len(data) << 3 | 1).to_bytes(3, "little") + data


def test_zstd_with_a_long_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"train.jsonl.zst": long_window(LINES)})
    corpus = JsonLines(source=str(tmp_path))
    with monkeypatch.context() as patch:
        for name in ("compression.zstd", "backports.zstd"):
            patch.setitem(sys.modules, name, None)
        packing.zstd_module.cache_clear()
        with pytest.raises(
            CorpusError,
            match=r"train\.jsonl\.zst is packed by zstd with a window of more than 128 MiB .*pip install backports",
        ):
            read_all(corpus)
    packing.zstd_module.cache_clear()
    if packing.zstd_module() is None:
        pytest.skip("needs Python 3.14 or backports.zstd")
    assert list(read_all(corpus)[0].values()) == ["one", "two"]


@given(st.text(max_size=600))
def test_no_text_is_taken_for_packed(text: str) -> None:
    assert packing_of(text.encode()[:512]) == ""
