"""Pieces of long texts give the ids of the whole, for every kind of model; training says what a corpus is too small for."""

from __future__ import annotations

import io
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from benchmarks.machine import resident
from data_prep import lanes
from data_prep.tokenizers import (
    SentencePieceTokenizer,
    TokenizerError,
    TokenizerTraining,
    shortfall,
    train_sentencepiece,
)
from data_prep.tokenizers.charsmap import PRINTABLE, kept_before_a_space
from data_prep.tokenizers.sentence_piece import PIECE_CHARACTERS
from data_prep.tokenizers.training import MIN_PIECES
from tests.shared_data import need

SOURCE = Path(lanes.__file__).read_text(encoding="utf-8")
KINDS = {
    "pg19's": {"model_type": "bpe", "remove_extra_whitespaces": False},
    "T5's": {"model_type": "unigram"},
    "case folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "Llama's": {
        **{"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        **{"byte_fallback": True, "allow_whitespace_only_pieces": True},
    },
    "stripped BPE": {"model_type": "bpe", "user_defined_symbols": ["def", "<x>"]},
    "no prefix": {"model_type": "bpe", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
}
PROVED = (*KINDS, "bpe", "unigram")
"""Those whose texts may be cut; the last two are as `prepare` trains them."""
UNIGRAM = {"T5's", "case folded", "unigram"}
"""Two segmentations with equal scores are both right: rounding to 32 bits decides, and so does the place where it begins."""
UNPROVED = {
    "stripped, no prefix": {"model_type": "bpe", "add_dummy_prefix": False},
    "suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "pieces over spaces": {"model_type": "bpe", "split_by_whitespace": False},
    "words": {"model_type": "word"},
}
SAMPLES = st.one_of(
    st.text(st.sampled_from(list("ab 'dxA.\n\t\r\u2581\u0308\u00a0\u3000\u200b\ufb01é漢\u0001")), max_size=60),
    st.lists(st.sampled_from(["a b", "x  y", " \u0308", "\u2581 ", " \u2581", "def f", "\u00a8 z", "é. D"])).map(
        "".join
    ),
    st.lists(
        st.sampled_from(
            ["привет мир", " и ёлка", "Й ", " й", "שלום עולם", "한국어 텍스트", " é à", " \u0308", "x ", "ǆ b", " ᾳ"]
        )
    ).map("".join),
    st.text(max_size=60),
)


def model(**options: Any) -> bytes:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(SOURCE.split("\n")),
        model_writer=made,
        **dict[str, Any](vocab_size=400, hard_vocab_limit=False, minloglevel=2) | options,
    )
    return made.getvalue()


@cache
def made(kind: str) -> SentencePieceTokenizer:
    """A tokenizer of a kind of model, which cuts texts into pieces as short as they can be. Do not change it."""
    if kind in ("bpe", "unigram"):
        tokenizer = train_sentencepiece(TokenizerTraining(kind, kind, 400), "", SOURCE.split("\n"))
    else:
        tokenizer = SentencePieceTokenizer(model(**{**KINDS, **UNPROVED}[kind]), kind)
    return with_cuts(tokenizer, characters=0, fallback_characters=8) if tokenizer.cuts else tokenizer


def with_cuts(tokenizer: SentencePieceTokenizer, **lengths: Any) -> SentencePieceTokenizer:
    """A copy of a tokenizer that cuts texts, with other lengths of pieces."""
    assert tokenizer.cuts
    changed = copy(tokenizer)
    changed.cuts = replace(tokenizer.cuts, **lengths)
    return changed


@pytest.mark.parametrize("kind", PROVED)
@settings(deadline=None, max_examples=300)
@given(text=SAMPLES)
@example(text="x \u0308 y z")
@example(text="a b\u2581 c d")
@example(text="AAAAA A\r   \u2581\u2581")
@example(text="")
def test_pieces_do_not_change_the_ids(kind: str, text: str) -> None:
    tokenizer = made(kind)
    assert tokenizer.cuts
    ids, whole = tokenizer.encode(text).tolist(), tokenizer._processor.encode(text)
    if ids != whole:  # both are best: four spaces and one, one and four
        assert kind in UNIGRAM and sorted(ids) == sorted(whole) and tokenizer.decode(ids) == tokenizer.decode(whole)


@pytest.mark.parametrize("kind", PROVED)
def test_pieces_are_short_and_keep_the_ids_of_a_long_text(kind: str) -> None:
    tokenizer, text = made(kind), "\n\n" + SOURCE + "\n \n" + SOURCE
    assert tokenizer.cuts
    assert max(map(len, tokenizer.cuts.pieces(text))) < 100
    ids, whole = tokenizer.encode(text).tolist(), tokenizer._processor.encode(text)
    if kind in UNIGRAM:  # scores are summed in 32 bits: over a whole text, equals are told apart by rounding
        assert len(ids) == len(whole) and sum(a != b for a, b in zip(ids, whole, strict=True)) < len(ids) / 100
    else:
        assert ids == whole


@pytest.mark.parametrize("kind", PROVED)
def test_texts_of_other_scripts_are_cut_too(kind: str) -> None:
    tokenizer = made(kind)
    for text in ("привет мир и ёлка " * 99, "שלום עולם " * 99, "안녕하세요 세계 " * 99):
        assert tokenizer.cuts and max(map(len, tokenizer.cuts.pieces(text))) < 40
        assert tokenizer.encode(text).tolist() == tokenizer._processor.encode(text)


@pytest.mark.parametrize("kind", sorted(UNIGRAM))
def test_a_unigram_models_texts_are_cut_in_ascii_where_they_can_be(kind: str) -> None:
    """So that the ids of such texts stay as they were before there were other places, also where two segmentations are equal."""
    cuts = made(kind).cuts
    assert cuts
    cuts = replace(cuts, characters=40, fallback_characters=1 << 16)
    text = "привет мир и Ёлка (a b) é à c\u00a0d " * 300
    assert list(cuts.pieces(text)) == list(replace(cuts, fallback="").pieces(text))
    assert max(map(len, cuts.pieces("привет мир и ёлка " * 9000))) < 66_000


@pytest.mark.parametrize("kind", [*PROVED, *UNPROVED])
@settings(deadline=None, max_examples=30)
@given(texts=st.lists(SAMPLES, min_size=1))
@example(texts=["a b", "", " ", "x " * 3000])
def test_ids_of_a_batch_are_those_of_the_library(kind: str, texts: list[str]) -> None:
    tokenizer = made(kind)
    if tokenizer.cuts:
        tokenizer = with_cuts(tokenizer, characters=PIECE_CHARACTERS)
    ids, lengths = tokenizer.encode_batch(texts)
    expected = [tokenizer._processor.encode(text) for text in texts]
    assert lengths.tolist() == [len(part) for part in expected]
    assert ids.tolist() == [index for part in expected for index in part]


@pytest.mark.parametrize("kind", UNPROVED)
def test_no_cuts_where_nothing_is_proved(kind: str) -> None:
    assert made(kind).cuts is None
    assert made(kind).encode(SOURCE).tolist() == made(kind)._processor.encode(SOURCE)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ("61 20\t62\n", ""),  # extends past a space
        ("20 61\t62\n", ""),
        ("20\t5F\n", ""),  # replaces the space
        ("20 308\t62\n", PRINTABLE),
        ("61\t62\n", PRINTABLE.replace("a", "")),
        ("61 62\t63\n62 61 63\t\n", PRINTABLE.replace("b", "").replace("c", "")),
        ("61\t2581\n", PRINTABLE.replace("a", "")),
    ],
)
def test_rules_of_normalization(rules: str, kept: str, tmp_path: Path) -> None:
    (tmp_path / "rules.tsv").write_text(rules)
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(model(normalization_rule_tsv=str(tmp_path / "rules.tsv")))
    assert kept_before_a_space(proto.normalizer_spec.precompiled_charsmap) == kept


@pytest.mark.parametrize(
    ("rules", "lost"),
    [
        ("43F\t440\n", "п"),
        ("438 306\t439\n", ""),
        ("AC00\tAC01\n", "가"),
        ("61 43F\t62\n", "п"),
        ("20 43F\t62\n", "whole"),
    ],
)
def test_rules_of_normalization_for_other_letters(rules: str, lost: str, tmp_path: Path) -> None:
    (tmp_path / "rules.tsv").write_text(rules)
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(model(normalization_rule_tsv=str(tmp_path / "rules.tsv")))
    letters = "aпри가각é"
    kept = "" if lost == "whole" else letters.replace(lost, "")
    assert kept_before_a_space(proto.normalizer_spec.precompiled_charsmap, letters) == kept


@given(st.binary(max_size=200))
def test_damaged_rules_prove_nothing_or_are_read(data: bytes) -> None:
    assert set(kept_before_a_space(data)) <= set(PRINTABLE)
    assert set(kept_before_a_space(data, "aп가")) <= set("aп가")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_corpus_too_small_for_the_size(kind: str) -> None:
    training = TokenizerTraining(f"sentencepiece-{kind}:64000", kind, 64000)
    tokenizer = train_sentencepiece(training, "", SOURCE.split("\n"))
    pieces = tokenizer.vocab_size - 1
    assert pieces < 3000
    assert shortfall(training, tokenizer) == (
        f"tokenizer {training.spec} has {pieces:,} pieces and not 64,000: the train split gives no more; ask for {pieces:,} or "
        "fewer, or give a larger corpus"
    )
    exact = TokenizerTraining("", kind, pieces)
    assert shortfall(exact, train_sentencepiece(exact, "", SOURCE.split("\n"))) == ""


def test_a_corpus_too_small_for_any_size() -> None:
    training = TokenizerTraining(f"sentencepiece:{MIN_PIECES}", "unigram", MIN_PIECES)
    tokenizer = train_sentencepiece(training, "", ["a b"])
    assert tokenizer.vocab_size - 1 < MIN_PIECES
    assert shortfall(training, tokenizer).endswith(
        "the train split gives no more; give a larger corpus, or use --tokenizer bytes"
    )


def test_too_few_pieces_for_the_characters() -> None:
    with pytest.raises(
        TokenizerError, match=r"alone take (\d+) pieces\): ask for \1 or more, or use --tokenizer bytes"
    ):
        train_sentencepiece(TokenizerTraining("sentencepiece:300", "unigram", 300), "", SOURCE.split("\n"))


def test_memory_of_a_long_text() -> None:
    tokenizer = with_cuts(made("pg19's"), characters=4096)
    text = SOURCE * (8_000_000 // len(SOURCE))
    Path("/proc/self/clear_refs").write_text("5")  # the most that this process had is what it has now
    before = resident("VmHWM")
    tokens = len(tokenizer.encode(text))
    grown = resident("VmHWM") - before
    assert tokens > len(text) / 8 and grown < 3 * len(text)


@pytest.mark.real_data
def test_released_models(tmp_path: Path) -> None:
    text = min(need("pg19", "validation").glob("*.txt"), key=lambda path: path.stat().st_size).read_bytes().decode()
    for parts in (("sentencepiece_pg19", "pg19train_bpe_512.model"), ("t5_style_seqio", "sentencepiece.model")):
        tokenizer = SentencePieceTokenizer(need("tokenizers", *parts).read_bytes())
        assert tokenizer.cuts and np.array_equal(tokenizer.encode(text), tokenizer._processor.encode(text))
        last = tokenizer.vocab_size - 1
        assert last == tokenizer._processor.get_piece_size() and last not in tokenizer.encode("<s></s><pad>" + text)
    t5 = tokenizer._processor  # pyrefly: ignore
    assert (t5.pad_id(), t5.eos_id(), t5.unk_id()) == (0, 1, 2)
