"""Corpora as people have them: linked folders, zips of other systems, encrypted files, odd columns and numbers."""

from __future__ import annotations

import gzip
from pathlib import Path

from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.text import Text
from data_prep.documents import SPLITS, Document
from tests.small_archives import put, read_all, tar

TEX = b"\\documentclass{article}\\begin{document}%s\\end{document}"


def test_linked_folders_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"books/own.txt": "own", "elsewhere/a.txt": "a", "elsewhere/deep/b.txt": "b"})
    (tmp_path / "books" / "linked").symlink_to(tmp_path / "elsewhere")
    assert read_all(Text(source=str(tmp_path / "books")))[0] == {
        "own.txt": "own",
        "linked/a.txt": "a",
        "linked/deep/b.txt": "b",
    }
    put(tmp_path, {"shards/one.jsonl": '{"text": "one"}', "more/two.jsonl": '{"text": "two"}'})
    (tmp_path / "shards" / "more").symlink_to(tmp_path / "more")
    texts, _ = read_all(JsonLines(source=str(tmp_path / "shards")))
    assert texts == {"one.jsonl:1": "one", "more/two.jsonl:1": "two"}


def test_linked_folders_of_splits_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"data/tr/1.txt": "one", "data/va/2.txt": "two"})
    put(tmp_path, {"books/test/3.txt": "three"})
    (tmp_path / "books" / "train").symlink_to("../data/tr")
    (tmp_path / "books" / "validation").symlink_to("../data/va")
    corpus = Text(source=str(tmp_path / "books"))
    found = {split: [d.text for d in corpus.read(corpus.sources(split)) if isinstance(d, Document)] for split in SPLITS}
    assert found == {"train": ["one"], "validation": ["two"], "test": ["three"]}


def test_a_link_to_a_folder_above_it_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, {"books/a/1.txt": "one", "books/b/2.txt": "two"})
    (tmp_path / "books" / "self").symlink_to(".")
    (tmp_path / "books" / "a" / "up").symlink_to("..")
    (tmp_path / "books" / "b" / "back").symlink_to("../a")
    assert set(read_all(Text(source=str(tmp_path / "books")))[0]) == {"a/1.txt", "b/2.txt", "b/back/1.txt"}


def test_linked_papers_and_archives_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"disk/arXiv_src_2101_001.tar": tar({"2101/2101.00001.gz": gzip.compress(TEX % b"packed")})})
    put(
        tmp_path,
        {"disk/2101.00002/ms.tex": TEX % b"folder", "secret.tex": b"secret", "papers/2101.00003/ms.tex": TEX % b"own"},
    )
    (tmp_path / "disk" / "2101.00002" / "link.tex").symlink_to(tmp_path / "secret.tex")
    for name in ("arXiv_src_2101_001.tar", "2101.00002"):
        (tmp_path / "papers" / name).symlink_to(tmp_path / "disk" / name)
    texts, _ = read_all(Arxiv(source=str(tmp_path / "papers")))
    assert set(texts) == {"2101.00001", "2101.00002", "2101.00003"}
    assert "folder" in str(texts["2101.00002"]) and "secret" not in str(texts)


def test_a_linked_repository_is_read_and_what_it_links_to_is_not(tmp_path: Path) -> None:
    put(tmp_path, {"disk/repo/a.py": "a = 1\n", "other/b.py": "b"})
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "repo").symlink_to(tmp_path / "disk" / "repo")
    (tmp_path / "disk" / "repo" / "other").symlink_to(tmp_path / "other")
    assert read_all(GitHub(source=str(tmp_path / "all")))[0] == {"repo": "# file: repo/a.py\na = 1\n\n"}
