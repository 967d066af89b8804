"""Parts of PG-19: the first books, and the first tokens of each validation book."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import UserError
from data_prep.corpora.pg19 import Pg19
from data_prep.cutting import beginning
from data_prep.documents import CorpusError
from data_prep.store import SegmentStore
from data_prep.tokenizers import BytesTokenizer, Tokenizer
from pipelines.prepare import PrepareConfig, prepare
from tests.small_corpus import contents, words
from tests.small_tokenizers import byte_pairs


@pytest.fixture
def books(tmp_path: Path) -> Path:
    for split, names in {"train": "2 10 1 100", "validation": "5 6", "test": "7"}.items():
        (tmp_path / "pg19" / split).mkdir(parents=True)
        for name in names.split():
            (tmp_path / "pg19" / split / f"{name}.txt").write_bytes(words(f"{split}{name}é", 300).encode())
    (tmp_path / "pg19" / "validation" / "6.txt").write_text("A short one.")
    return tmp_path / "pg19"


@pytest.mark.parametrize("tokenizer", [BytesTokenizer(), byte_pairs("gpt2")], ids=["bytes", "gpt2"])
@pytest.mark.parametrize("limit", [1, 2, 17, 300, 100_000])
def test_a_beginning_has_no_more_tokens_and_none_less_than_fit(tokenizer: Tokenizer, limit: int) -> None:
    text = "Æther " + words("text", 400)
    found, ids = beginning(text, limit, tokenizer), tokenizer.encode(text)
    assert text.startswith(found) and len(tokenizer.encode(found)) <= limit
    assert found == text or len(tokenizer.encode(text[: len(found) + 1])) > limit
    whole = min(limit, len(ids))
    assert tokenizer.encode(found).tolist() == ids[: len(tokenizer.encode(found))].tolist()
    assert len(tokenizer.encode(found)) >= whole - 3  # a character has up to four bytes


def test_the_first_books_and_the_first_tokens_of_each(books: Path, make_config: Callable[..., PrepareConfig]) -> None:
    corpus = Pg19(source=str(books), books=2, validation_tokens=100)
    made = make_config(corpus=corpus)
    prepare(made)
    split = {name: SegmentStore.open(made.store, "pg19", name) for name in ("train", "validation", "test")}
    assert [document.id for document in split["train"].manifest.documents] == ["1", "10"]  # by name, and not 1, 2
    long, short = split["validation"].manifest.documents
    text = (books / "validation" / "5.txt").read_bytes()[:100].decode(errors="ignore")
    assert split["validation"].tokens(0, 0, long.tokens).tolist() == list(text.encode())
    assert (long.words, long.bytes, short.tokens) == (len(text.split()), len(text.encode()), 12)
    assert split["test"].lengths.tolist() == [(books / "test" / "7.txt").stat().st_size]
    assert prepare(made)["validation"].fingerprint == split["validation"].manifest.fingerprint


def test_without_the_options_a_store_is_the_same_to_the_byte(
    books: Path, make_config: Callable[..., PrepareConfig], tmp_path: Path
) -> None:
    assert Pg19(source=str(books)).options() == {"newline": "keep"}
    assert Pg19(books=3).options() == {"newline": "keep", "books": 3}
    plain, wide = (
        make_config(corpus=Pg19(source=str(books), validation_tokens=limit), store=str(tmp_path / str(limit)))
        for limit in (0, 10**6)
    )
    prepare(plain)
    prepare(wide)  # through the cut, which cuts nothing
    arrow = [
        {name: data for name, data in contents(Path(made.store)).items() if "part-" in name} for made in (plain, wide)
    ]
    assert arrow[0] == arrow[1] and arrow[0]


def test_what_cannot_be_cut_is_refused(books: Path, make_config: Callable[..., PrepareConfig]) -> None:
    with pytest.raises(UserError, match="--books is -1: it must be at least 0"):
        Pg19(books=-1)
    trained = make_config(corpus=Pg19(source=str(books), validation_tokens=10), tokenizer="sentencepiece:400")
    with pytest.raises(CorpusError, match=r"sentencepiece:400 is not there before it is trained .* give its file with"):
        prepare(trained)
