"""arXiv's bulk source and folders of papers: what is read, in which order, and what becomes of hostile and damaged archives."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.corpora import arxiv, latex
from data_prep.corpora.arxiv import Arxiv, canonical
from data_prep.documents import SPLITS, CorpusError, Document, scan
from pipelines.prepare import prepare
from tests.shared_data import need
from tests.small_archives import link, packed, put, read_all, tar

MAIN = b"\\documentclass{article}\n\\begin{document}\n%s\n\\end{document}\n"
BULK = "src/arXiv_src_2101_001.tar"


def bulk(tmp_path: Path, members: dict[str, bytes | tarfile.TarInfo], **options: object) -> Arxiv:
    put(tmp_path, {BULK: tar(members)})
    return Arxiv(source=str(tmp_path), **options)  # type: ignore[arg-type]


def test_bulk_archive(tmp_path: Path) -> None:
    paper = {
        "fig.eps": b"%!PS" * 300,
        "b.tex": b"B\n",
        "ms.tex": MAIN % b"\\input{b} text",
        "a.tex": b"caf\xe9\n",
        "x.pdf": b"%PDF",
    }
    corpus = bulk(
        tmp_path,
        {
            "2101/2101.00001.gz": packed(paper),
            "2101/2101.00002.gz": gzip.compress(MAIN % "é".encode()),
            "2101/2101.00003.pdf": b"%PDF-1.4 ...",
            "2101/2101.00004.gz": gzip.compress(b"%auto-ignore\nThis paper is gone.\n"),
            "2101/2101.00005.gz": packed({"w.tex": MAIN % b"This paper has been Withdrawn by the author."}),
            "2101/2101.00006.gz": packed({"paper.pdf": b"%PDF-1.4", "ps.eps": b"%!PS"}),
            "2101/2101.00007.gz": gzip.compress(b"%!PS-Adobe-2.0\n"),
            "2101/2101.00008.gz": gzip.compress(b"<!DOCTYPE html><html>"),
            "2101/2101.00009.gz": b"",
            "0001/hep-th0001208.gz": packed({"paper": MAIN % b"old", "figure": b"\0\1"}),
        },
    )
    texts, skipped = read_all(corpus)
    assert texts["2101.00001"] == (
        "% file: ms.tex\n" + (MAIN % b"\\input{b} text").decode() + "\n% file: b.tex\nB\n\n% file: a.tex\ncafé\n\n"
    )
    assert texts["2101.00002"] == "% file: 2101.00002.tex\n" + (MAIN % "é".encode()).decode() + "\n"
    assert texts["hep-th0001208"] == "% file: paper\n" + (MAIN % b"old").decode() + "\n"
    assert sorted(texts) == ["2101.00001", "2101.00002", "hep-th0001208"]
    assert skipped == {"PDF only": 2, "withdrawn": 2, "PostScript only": 1, "HTML only": 1, "empty": 1}
    assert read_all(Arxiv(source=str(tmp_path / BULK))) == (texts, skipped)  # the archive itself


def test_papers_in_folders_and_files(tmp_path: Path) -> None:
    put(tmp_path, {"one/main.tex": MAIN % b"1", "one/sec/z.tex": "z", "one/LICENSE": "no", "two/paper.pdf": "%PDF"})
    put(tmp_path, {"math.GT0309136.gz": gzip.compress(MAIN % b"3"), "2101.7.tar.gz": packed({"./x.tex": MAIN % b"4"})})
    texts, skipped = read_all(Arxiv(source=str(tmp_path)))
    assert set(texts) == {"one", "math0309136", "2101.7"} and skipped == {"PDF only": 1}
    assert re.findall("^% file: (.*)$", str(texts["one"]), re.MULTILINE) == ["main.tex", "sec/z.tex"]
    assert str(texts["2101.7"]).startswith("% file: x.tex\n")


def test_papers_in_folders_of_months(tmp_path: Path) -> None:
    files = {
        "0001/hep-th0001208.gz": gzip.compress(MAIN % b"1"),
        "0001/astro-ph0001001.pdf": "%PDF-1.4",
        "0001/._astro-ph0001002.gz": "hidden",
        "2101/2101.00001v2/main.tex": MAIN % b"2",
        "2101/2101.00001v2/sec/z.tex": "z",
        "2101/2101.00002.tar": tar({"m.tex": MAIN % b"3"}),
        "2101/SHA256SUMS": "no paper",
        "2101.00003.gz": gzip.compress(MAIN % b"4"),
        "1234/main.tex": MAIN % b"a paper's own folder",
    }
    texts, skipped = read_all(Arxiv(source=str(put(tmp_path, files))))
    assert set(texts) == {"hep-th0001208", "2101.00001", "2101.00002", "2101.00003", "1234"}
    assert re.findall("^% file: (.*)$", str(texts["2101.00001"]), re.MULTILINE) == ["main.tex", "sec/z.tex"]
    assert skipped == {"PDF only": 1}


@pytest.mark.parametrize(
    ("written", "id"),
    [
        ("2101.00001v3", "2101.00001"),
        ("0704.0001", "0704.0001"),
        ("hep-th/9901001", "hep-th9901001"),
        ("hep-th0001208", "hep-th0001208"),
        ("math.GT/0309136v1", "math0309136"),
        ("napkinv2", "napkinv2"),
        ("arXiv:2101.00001v3", "2101.00001"),
        ("arxiv: math.GT/0309136", "math0309136"),
        ("https://arxiv.org/abs/hep-th/9901001v2", "hep-th9901001"),
    ],
)
def test_ids(written: str, id: str) -> None:
    assert canonical(written) == id


def test_papers_that_are_files_called_by_their_ids(tmp_path: Path) -> None:
    paper = MAIN % b"x"
    files = {
        "2101.00001": gzip.compress(paper),
        "2101.00002v2": packed({"m.tex": paper}),
        "2101.00003.tar": tar({"m.tex": paper, "intro.tex": b"intro"}),
        "2101.00004.tex": paper,
        "2101.00005.pdf": b"%PDF-1.4",
        "math0309136.gz": gzip.compress(paper),
        "README.md": b"no paper",
        "arxiv.json": b"{}",
    }
    texts, skipped = read_all(Arxiv(source=str(put(tmp_path / "papers", files))))
    assert set(texts) == {"2101.00001", "2101.00002", "2101.00003", "2101.00004", "math0309136"}
    assert skipped == {"PDF only": 1}
    assert "intro" in str(texts["2101.00003"])
    assert set(read_all(Arxiv(source=str(tmp_path / "papers" / "2101.00003.tar")))[0]) == {"2101.00003"}
    put(tmp_path, {"ids": "2101.00001\n"})
    assert set(read_all(Arxiv(source=str(tmp_path / "papers"), ids=str(tmp_path / "ids")))[0]) == {"2101.00001"}
    with pytest.raises(IsADirectoryError):
        Arxiv(source=str(tmp_path / "papers"), ids=str(tmp_path)).sources("train")


def test_a_list_or_a_subject_restricts(tmp_path: Path) -> None:
    names = ("2101.00001", "2101.00002", "2101.00003", "math0309136")
    members: dict[str, bytes | tarfile.TarInfo] = {f"2101/{name}.gz": gzip.compress(MAIN % b"x") for name in names}
    put(tmp_path, {BULK: tar({**members, "2101/2101.00009.pdf": b"%PDF"}), "folder/x.tex": "x"})
    records = [
        {"id": "2101.00001", "title": "A\n  title", "categories": "cs.LG math.AG"},
        {"id": "2101.00002", "title": "B", "categories": "math-ph stat.ML"},
        {"id": "math/0309136", "title": None, "categories": ["math.GT hep-th"]},
        {"id": "2101.77777", "title": "elsewhere", "categories": "math.GT"},
    ]
    metadata = "\n".join(json.dumps(record) for record in records)
    put(
        tmp_path / "lists",
        {"m.json": metadata, "m.json.gz": gzip.compress(metadata.encode()), "ids": "2101.00002v2\n\nmath/0309136\n"},
    )
    source, lists = str(tmp_path / "src"), tmp_path / "lists"
    for name in ("m.json", "m.json.gz"):
        corpus = Arxiv(source=source, metadata=str(lists / name), subject="math")
        assert read_all(corpus)[1] == {} and set(read_all(corpus)[0]) == {"2101.00001", "math0309136"}
        titles = {source.id: source.title for split in SPLITS for source in corpus.sources(split)}
        assert titles == {"2101.00001": "A title", "math0309136": "math0309136"}
    assert set(read_all(Arxiv(source=source, ids=str(lists / "ids")))[0]) == {"2101.00002", "math0309136"}
    both = Arxiv(source=source, ids=str(lists / "ids"), metadata=str(lists / "m.json"), subject="math.GT")
    assert set(read_all(both)[0]) == {"math0309136"}
    with pytest.raises(CorpusError, match="holds no paper that --ids, --metadata and --subject ask for"):
        Arxiv(source=source, metadata=str(lists / "m.json"), subject="econ").sources("train")
    with pytest.raises(CorpusError, match="--subject needs --metadata"):
        Arxiv(source=source, subject="math").sources("train")
    changed = metadata.replace("cs.LG math.AG", "cs.LG cond-ma").replace("math-ph stat.ML", "math.PR stat.ML")
    assert len(changed) == len(metadata)
    put(lists, {"m.json": changed})
    assert set(read_all(Arxiv(source=source, metadata=str(lists / "m.json"), subject="math"))[0]) == {
        "2101.00002",
        "math0309136",
    }
    put(lists, {"bad.json": metadata + '\n{"id": 3}\n'})
    with pytest.raises(CorpusError, match=r"bad\.json line 5 is not a record with id, title and categories"):
        Arxiv(source=source, metadata=str(lists / "bad.json"), subject="math").sources("train")
    put(lists, {"half.json": json.dumps({"id": "2101.00001", "title": "\ud800", "categories": "math.GT"})})
    with pytest.raises(CorpusError, match=r"half\.json line 1 is not a record .* \('utf-8' codec can't encode"):
        Arxiv(source=source, metadata=str(lists / "half.json"), subject="math").sources("train")


def test_ids_that_are_not_found_are_counted(tmp_path: Path) -> None:
    papers: dict[str, bytes | tarfile.TarInfo] = {
        f"2101/2101.{i:05}.gz": gzip.compress(MAIN % b"x") for i in range(1, 4)
    }
    put(tmp_path, {BULK: tar({**papers, "2101/2101.00004.pdf": b"%PDF"}), "src/folder/x.tex": "x"})
    asked = [
        "arXiv:2101.00001",
        "https://arxiv.org/abs/2101.00002v1",
        "2101.00004",
        "2101.00005",
        "arXiv:math/0000001",
        "folder",
    ]
    put(tmp_path, {"ids": b"\xef\xbb\xbf" + "\r\n".join(asked).encode()})
    corpus = Arxiv(source=str(tmp_path / "src"), ids=str(tmp_path / "ids"))
    texts, skipped = read_all(corpus)
    assert set(texts) == {"2101.00001", "2101.00002", "folder"}
    assert skipped == {"PDF only": 1, "of --ids not found (2101.00005, math0000001)": 2}
    put(tmp_path, {"ids": "2101.00003\n" + "".join(f"2102.{i:05}\n" for i in range(9))})
    assert read_all(corpus)[1] == {"of --ids not found (2102.00000, 2102.00001, 2102.00002, …)": 9}


def test_archives_are_listed_once(tmp_path: Path, make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        members = {f"2101/2101.{100 * i + j:05}.gz": gzip.compress(MAIN % b"text") for j in range(20)}
        put(tmp_path, {f"in/arXiv_src_2101_{i:03}.tar": tar(members)})
    listed: list[str] = []
    plain = arxiv._bulk
    monkeypatch.setattr(
        arxiv, "_bulk", lambda file, *rest, **more: (listed.append(file.name), plain(file, *rest, **more))[1]
    )
    corpus = Arxiv(source=str(tmp_path / "in"))
    manifests = prepare(make_config(corpus=corpus))
    assert sum(manifest.totals.documents for manifest in manifests.values()) == 80
    assert sorted(listed) == [f"arXiv_src_2101_{i:03}.tar" for i in range(4)]
    put(
        tmp_path,
        {"in/arXiv_src_2101_001.tar": tar({f"2102/2102.{j:05}.gz": gzip.compress(MAIN % b"text") for j in range(20)})},
    )
    assert len(listed) == 4 and any(
        id.startswith("2102") for split in SPLITS for id in [s.id for s in corpus.sources(split)]
    )
    assert len(listed) == 8  # one has changed: all are listed again, once


def test_splits_follow_from_ids_alone(tmp_path: Path) -> None:
    members: dict[str, bytes | tarfile.TarInfo] = {f"{i}/2101.{i:05}.gz": gzip.compress(MAIN % b"x") for i in range(60)}
    first = bulk(tmp_path / "a", members)
    second = bulk(tmp_path / "b", dict(sorted(members.items(), reverse=True)))
    for split in SPLITS:
        assert {s.id for s in first.sources(split)} == {s.id for s in second.sources(split)} != set()


def files(**texts: str) -> dict[str, str]:
    return {name.replace("__", "/") + ".tex": text for name, text in texts.items()}


def test_order_of_inclusion() -> None:
    main = (
        r"\documentclass{book}\begin{document} % \input{d}"
        + "\n"
        + r"\input{ c }\include{sub/b}\subfile{a.tex}\input d"
    )
    given = files(
        z=main, a="a", c=r"\input{sub/x} \input{z}", d=r"100\% \input{e}", e="e", sub__b=r"\input{x}", sub__x="x", f="f"
    )
    assert latex.order(given) == [f"{n}.tex" for n in ("z", "c", "sub/x", "sub/b", "a", "d", "e", "f")]


def test_inputs_beside_the_main_file_and_by_import() -> None:
    main = r"\documentstyle{article}\begin{document}\subimport{parts/}{one}\import{parts}{two}\input{../src/three}"
    given = files(
        src__main=main, src__parts__one=r"\input{deep}", src__parts__two="2", src__parts__deep="d", src__three="3"
    )
    expected = ["src/main", "src/parts/one", "src/parts/deep", "src/parts/two", "src/three"]
    assert latex.order(given) == [f"{n}.tex" for n in expected]


def test_the_main_file() -> None:
    whole = r"\documentclass{article}\begin{document}"
    assert latex.order(files(cover=whole, paper=whole + r"\input{text}", text="t" * 100))[0] == "paper.tex"
    assert latex.order(files(a__x=whole, b=whole))[0] == "b.tex"  # as long, nearer the top
    assert latex.order(files(z=r"\begin{document}\input{y}", y=r"\documentclass{article}"))[0] == "z.tex"
    assert (
        latex.order(files(p=r"\documentclass[main]{subfiles}\begin{document}" + "p" * 999, main=whole))[0] == "main.tex"
    )
    assert latex.order(files(q=r"% \documentclass{article} \begin{document}", r=whole, a="plain"))[0] == "r.tex"
    assert latex.order(files(b="plain", a="tex")) == ["b.tex", "a.tex"] and latex.order({}) == []


def test_chains_and_cycles_of_inputs_end() -> None:
    chain = {f"{i}.tex": rf"\input{{{i + 1}}}" for i in range(5000)} | {"5000.tex": r"\input{0}"}
    assert latex.order({"m.tex": r"\documentclass{a}\begin{document}\input{0}", **chain})[-1] == "5000.tex"


@pytest.mark.parametrize(
    "text",
    [
        "\\" * 300_000, "\\input " * 40_000, "\\input{" * 50_000, "\\documentclass[" * 30_000, "%" * 300_000,
        "\\documentclass" + " " * 300_000, "\\documentclass[a]" + "\n" * 300_000, "\\input" + " " * 300_000 + "{",
        "\\import{a}" + " " * 300_000,
    ],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    start = time.process_time()
    assert latex.order({"a.tex": text}) == ["a.tex"]
    assert time.process_time() - start < 5


PIECES = [
    "\\input",
    "\\documentclass",
    "\\begin{document}",
    "\\subimport",
    "{a}",
    "{",
    "[",
    "]",
    "{subfiles}",
    " ",
    "\n",
    "%",
    "x",
    "\\",
]


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from([1, 2, 400])), max_size=6), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_time_follows_the_length_of_a_text(pieces: list[tuple[str, int]], times: int) -> None:
    text = "".join(piece * count for piece, count in pieces) * times
    start = time.process_time()
    latex.order({"a.tex": text})
    assert time.process_time() - start < 1 + len(text) * 20e-6


@given(st.integers(2, 220), st.integers(0, 220), st.integers(1, 40), st.sampled_from(["", "../", "x/"]))
@settings(max_examples=12, deadline=None)
def test_time_follows_the_inputs_of_a_paper(count: int, each: int, folders: int, above: str) -> None:
    """Files that all look like the main one and pull in each other, from folders of their own."""
    names = [f"{i % folders}/{i}" for i in range(count)]
    heads = r"\documentclass{a}\begin{document}"
    given = {
        f"{names[i]}.tex": heads + "".join(rf"\input{{{above}{names[(i + k) % count]}}}" for k in range(each))
        for i in range(count)
    }
    start = time.process_time()
    assert sorted(latex.order(given)) == sorted(given)
    assert time.process_time() - start < 2 + sum(map(len, given.values())) * 5e-6


def test_of_many_main_files_the_likeliest_are_looked_at() -> None:
    """More inputs than are followed: still the one that no other pulls in, and that pulls in most."""
    whole = r"\documentclass{a}\begin{document}"
    names = [f"a{i:03}" for i in range(300)]
    given = files(**{name: whole + "".join(rf"\input{{{other}}}" for other in names) for name in names})
    given |= files(z=whole + "".join(rf"\input{{{other}}}" for other in names), y=whole)
    start = time.process_time()
    assert latex.order(given)[:3] == ["z.tex", "a000.tex", "a001.tex"]
    assert time.process_time() - start < 8


def test_members_that_lead_out_are_never_written(tmp_path: Path) -> None:
    inner = {
        "../../escape.tex": b"out", "/etc/escape.tex": b"out", "main.tex": MAIN % b"x", "l.tex": link("l.tex", "/etc/passwd"),
        "h.tex": link("h.tex", "../x", tarfile.LNKTYPE), "d.tex": link("d.tex", "", tarfile.CHRTYPE), 
        "nested.tar": tar({"n.tex": b"n"}),
    }  # fmt: skip
    outer = {
        "2101/2101.00001.gz": packed(inner), "../2101.00002.gz": gzip.compress(MAIN % b"x"), "/2101.00003.gz": gzip.compress(b"x"),
        "2101/2101.00004.gz": link("2101/2101.00004.gz", "/etc/passwd"), "2101/fifo": link("2101/fifo", "", tarfile.FIFOTYPE),
        "2101/2101.00005.gz": packed({"nested.tar": tar({"n.tex": MAIN % b"x"})}),
    }  # fmt: skip
    before = {path for path in tmp_path.parent.rglob("*")}
    corpus = bulk(tmp_path / "in", outer)
    texts, skipped = read_all(corpus)
    assert set(texts) == {"2101.00001"} and "out" not in str(texts["2101.00001"])
    assert skipped == {"unsafe name": 4, "link or device": 5, "no TeX": 1}
    made = {path for path in tmp_path.parent.rglob("*")} - before
    assert made == {tmp_path / "in", tmp_path / "in" / "src", tmp_path / "in" / BULK}


def test_links_in_folders_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, {"secret": "secret", "papers/one/main.tex": MAIN % b"1"})
    (tmp_path / "papers" / "one" / "link.tex").symlink_to(tmp_path / "secret")
    (tmp_path / "papers" / "one" / "loop").symlink_to(tmp_path / "papers")
    texts, _ = read_all(Arxiv(source=str(tmp_path / "papers")))
    assert set(texts) == {"one"} and "secret" not in str(texts["one"])


def test_damaged_members_are_counted(tmp_path: Path) -> None:
    whole = packed({"ms.tex": MAIN % bytes(range(32, 127)) * 50})
    flipped = bytearray(gzip.compress((MAIN % b"x") * 99))
    flipped[-6] ^= 1  # its checksum
    members: dict[str, bytes | tarfile.TarInfo] = {
        "1/2101.00001.gz": whole[: len(whole) // 2], "1/2101.00002.gz": bytes(flipped), "1/2101.00003.gz": b"\x1f\x8b junk",
        "1/2101.00004.gz": gzip.compress(tar({"a.tex": b"a" * 600})[:700]), "1/2101.00005.gz": gzip.compress(MAIN % b"good"),
    }  # fmt: skip
    texts, skipped = read_all(bulk(tmp_path, members))
    assert set(texts) == {"2101.00005"} and skipped == {"damaged": 4}


def test_an_archive_that_ends_early_is_refused(tmp_path: Path) -> None:
    members: dict[str, bytes | tarfile.TarInfo] = {f"1/2101.{i:05}.gz": gzip.compress(MAIN % b"x") for i in range(4)}
    data = tar(members)
    end = data.rindex(b"ustar") + 512
    for length in (1, 511, 512, 513, 700, 1024, 1536, 1700, end - 300, end + 3):
        put(tmp_path, {BULK: data[:length]})
        with pytest.raises(CorpusError, match=r"arXiv_src_2101_001\.tar cannot be read \(.*\): it is damaged"):
            Arxiv(source=str(tmp_path)).sources("train")
    put(tmp_path, {BULK: data[:1030] + b"\xff" + data[1031:]})  # a header in the middle: tarfile takes it for the end
    with pytest.raises(CorpusError, match="a damaged header at offset 1,024"):
        Arxiv(source=str(tmp_path)).sources("train")


def test_members_of_strange_sizes(tmp_path: Path) -> None:
    def header(size: int) -> bytes:
        block = bytearray(tar({"1/2101.00001.gz": b""})[:512])
        block[124:136] = (size % (1 << 96)).to_bytes(12, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return bytes(block)

    for size in (-512, -1024, -(1 << 60), 1 << 70, 1 << 62, 5000):
        put(tmp_path / "a", {BULK: header(size) + bytes(2048)})
        with pytest.raises(CorpusError, match="cannot be read"):
            Arxiv(source=str(tmp_path / "a")).sources("train")
        put(tmp_path / "b", {BULK: tar({"1/2101.00001.gz": gzip.compress(header(size) + bytes(2048))})})
        assert read_all(Arxiv(source=str(tmp_path / "b")))[1].keys() <= {"damaged", "too large", "no TeX"}


def test_a_paper_twice_is_refused(tmp_path: Path) -> None:
    put(
        tmp_path,
        {name: tar({"1/2101.00001.gz": gzip.compress(b"x")}) for name in ("arXiv_src_1.tar", "arXiv_src_2.tar")},
    )
    with pytest.raises(CorpusError, match=r"holds paper 2101\.00001 twice"):
        Arxiv(source=str(tmp_path)).sources("train")


@pytest.mark.real_data
def test_real_papers() -> None:
    """The words, bytes and files of each are those of SOURCES.md; our comment lines are taken off again."""
    root = need("arxiv")
    corpus = Arxiv(source=str(root))
    rows = [line.split("|") for line in (root.parent / "SOURCES.md").read_text().splitlines() if line.count("|") == 7]
    expected = {
        row[1].strip(): tuple(int(n.replace(",", "")) for n in row[4:7]) for row in rows if row[4].strip().isdigit()
    }
    found = {}
    for split in SPLITS:
        for item in corpus.read(corpus.sources(split)):
            assert isinstance(item, Document) and isinstance(item.text, str)
            heads = re.findall(r"^% file: .*$", item.text, re.MULTILINE)
            size = len(item.text.encode()) - sum(len(f"{head}\n\n".encode()) for head in heads)
            # SOURCES.md separates words at ASCII white space, str.split at all: they differ in one paper, by one word.
            words = len(item.text.encode().split()) - 3 * len(heads)
            found[item.id] = (len(heads), size, words)
            assert scan(item)
    assert found == expected and len(found) == 34
    assert tuple(map(sum, zip(*found.values(), strict=True)))[:2] == (2493, 20_715_008)
