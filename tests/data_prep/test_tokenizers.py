"""Round trips, the ids' type and the extra id, saved tokenizers, and the sentence for every wrong spec."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from common.files import seal, unseal
from data_prep import lanes
from data_prep.documents import SPLITS, CorpusError, Document
from data_prep.store import SegmentStore
from data_prep.tokenizers import (
    BatchTokenizer,
    BytesTokenizer,
    HuggingFaceTokenizer,
    SentencePieceTokenizer,
    SymbolsTokenizer,
    Tokenizer,
    TokenizerError,
    TokenizerTraining,
    folded,
    is_lossless,
    load_tokenizer,
    save_tokenizer,
    token_dtype,
    tokenizer_from_spec,
    train_sentencepiece,
)
from data_prep.vocabulary import study
from pipelines.inspect import describe
from pipelines.prepare import prepare
from pipelines.terminal.output import lines
from pipelines.training.scoring import score_of
from tests.shared_data import need
from tests.small_corpus import contents
from tests.small_tokenizers import SPECIAL, moves_tokenizer, with_special_tokens

SOURCE = Path(lanes.__file__).read_text(encoding="utf-8")


@cache
def sentencepiece(kind: Literal["unigram", "bpe"]) -> SentencePieceTokenizer:
    """A tokenizer of 400 pieces, trained on SOURCE."""
    return train_sentencepiece(TokenizerTraining(kind, kind, 400), "", SOURCE.split("\n"))


@pytest.fixture(scope="module", params=["sentencepiece:400", "sentencepiece-bpe:400"])
def trained(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    training = tokenizer_from_spec(request.param)
    assert isinstance(training, TokenizerTraining)
    return train_sentencepiece(training, "digest", SOURCE.split("\n"))


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    tokenizer = BytesTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16 and ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([256, *ids.tolist(), 256]) == text  # begin-of-document reads as nothing


@settings(deadline=None)
@given(text=st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \t\n\r"))))
def test_trained_round_trip(text: str) -> None:
    text = text.replace("\u2581", "")  # SentencePiece writes a space so: the one character that cannot survive
    for tokenizer in (sentencepiece("unigram"), sentencepiece("bpe")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_trained(trained: SentencePieceTokenizer) -> None:
    ids = trained.encode(SOURCE)
    assert trained.decode(ids) == SOURCE and is_lossless(trained, [SOURCE])
    assert ids.dtype == np.uint16 and ids.max() < trained.vocab_size - 1 == 400
    assert len(SOURCE) / len(ids) > 1.5
    again = train_sentencepiece(
        TokenizerTraining(trained.name, "bpe" if "bpe" in trained.name else "unigram", 400),
        "digest",
        SOURCE.split("\n"),
    )
    assert again.fingerprint == trained.fingerprint


@settings(deadline=None)
@given(
    texts=st.lists(
        st.one_of(st.text(), st.sampled_from(["", " ", " \n", "def  f", "\u2581a ", "x" * 5000])), min_size=1
    )
)
def test_ids_of_a_batch_are_those_of_each_text(texts: list[str]) -> None:
    for tokenizer in (BytesTokenizer(), sentencepiece("unigram"), sentencepiece("bpe")):
        assert isinstance(tokenizer, BatchTokenizer)
        ids, lengths = tokenizer.encode_batch(texts)
        assert ids.dtype == np.uint16 and lengths.dtype == np.int64
        assert lengths.tolist() == [len(tokenizer.encode(text)) for text in texts]
        assert ids.tolist() == [index for text in texts for index in tokenizer.encode(text).tolist()]


def test_bytes_and_text_in_one_batch() -> None:
    ids, lengths = BytesTokenizer().encode_batch([b"\xff\0", "é"])
    assert (ids.tolist(), lengths.tolist()) == ([0xFF, 0, 0xC3, 0xA9], [2, 2])


@pytest.mark.parametrize("make", [BytesTokenizer, lambda: sentencepiece("unigram"), lambda: sentencepiece("bpe")])
def test_save_and_load(make, tmp_path: Path) -> None:
    tokenizer: Tokenizer = make()
    save_tokenizer(tokenizer, tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.name, loaded.vocab_size, loaded.fingerprint) == (
        tokenizer.name,
        tokenizer.vocab_size,
        tokenizer.fingerprint,
    )
    assert np.array_equal(loaded.encode(SOURCE), tokenizer.encode(SOURCE))
    assert not list(tmp_path.glob("*.tmp"))


def test_token_dtype() -> None:
    assert [token_dtype(size).name for size in (257, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


def test_damaged(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing: run the same prepare command again"):
        load_tokenizer(tmp_path)
    save_tokenizer(sentencepiece("unigram"), tmp_path)
    details = unseal((tmp_path / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes(seal({**details, "fingerprint": "0"}))
    with pytest.raises(TokenizerError, match="its fingerprint does not match"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(seal({**details, "kind": "abacus"}))
    with pytest.raises(TokenizerError, match="unknown tokenizer kind 'abacus'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("byte", "unknown tokenizer 'byte', and no such folder: did you mean 'bytes'"),
        ("sentencepeice:2048", "did you mean 'sentencepiece:2048'"),
        ("sentencepiece", "needs a number of pieces, 300 or more, below a million: write sentencepiece:2048"),
        ("sentencepiece-bpe:many", "write sentencepiece-bpe:2048"),
        ("sentencepiece:10", "300 or more"),
        ("sentencepiece:9999999999999", "below a million: write sentencepiece:2048"),
        ("sentencepiece:²", "write sentencepiece:2048"),
        ("gpt2:", "'gpt2:' needs a folder: write gpt2:FOLDER"),
        ("nowhere/tokenizer.json", "nowhere/tokenizer.json does not exist: give the path of a tokenizer.json"),
        ("nowhere/tokenizer", "nowhere/tokenizer does not exist: give the path of a tokenizer.json, or of a"),
        ("~nobody-here/x.model", "~nobody-here/x.model does not exist: give the path of a SentencePiece .model file"),
        ("gpt2:~nobody-here/x", "'gpt2:~nobody-here/x' needs a folder: write gpt2:FOLDER"),
        ("nowhere/x.model", "nowhere/x.model does not exist: give the path of a SentencePiece .model file"),
    ],
)
def test_wrong_specs(spec: str, words: str) -> None:
    with pytest.raises(TokenizerError, match=words):
        tokenizer_from_spec(spec)


@pytest.mark.parametrize("data", [b"", b"not a model", bytes(range(256))])
def test_not_a_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.model"
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match=r"x\.model is not a SentencePiece model: give a \.model file"):
        tokenizer_from_spec(str(path))


def test_no_text_to_train_on() -> None:
    with pytest.raises(TokenizerError, match=r"cannot be trained on this corpus .*: choose a corpus with more text"):
        train_sentencepiece(TokenizerTraining("sentencepiece-bpe:9000", "bpe", 9000), "", [])


FOLDING = {  # texts that no sample shows, and the tokenizers that change them
    "one\u2581two": {"sentencepiece:400", "t5"},
    "ﬁne ½ words": {"t5"},
    "one\u00a0two": {"t5"},
    "one \u200btwo": {"t5"},
    "one two": set(),
}


@pytest.mark.parametrize("text", FOLDING)
@pytest.mark.parametrize("spec", ["bytes", "sentencepiece:400", "t5"])
def test_lossless_is_not_said_of_text_that_changes(make_config, text_folder: Path, spec: str, text: str) -> None:
    """Behind what the samples show, in a document of which only the beginning is decoded."""
    plain = "one two three " * 1200 + "end"
    for path in text_folder.glob("*/*.txt"):
        path.write_text(plain)
    (text_folder / "train" / "doc1.txt").write_text(f"{plain} {text} {plain}")
    model = need("tokenizers", "t5_style_seqio", "sentencepiece.model") if spec == "t5" else spec
    manifest = prepare(make_config(tokenizer=str(model), splits=("train", "test")))
    assert manifest["train"].tokenizer.lossless == (spec not in FOLDING[text])
    assert manifest["test"].tokenizer.lossless


def test_what_a_tokenizer_folds(trained: SentencePieceTokenizer) -> None:
    assert folded(trained) == ["\u2581"] and folded(BytesTokenizer()) == []


def test_lossless_is_said_of_samples(make_config, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config(splits=("test",)))
    assert "257 ids with begin-of-document, lossless in samples\n" in capsys.readouterr().out


@pytest.mark.real_data
def test_released_model_is_read_as_it_is() -> None:
    path = need("tokenizers", "sentencepiece_pg19", "pg19train_bpe_4000.model")
    tokenizer = tokenizer_from_spec(str(path))
    assert isinstance(tokenizer, SentencePieceTokenizer)
    text = "It was the best of times,\nit was the worst of times."
    assert tokenizer.vocab_size == 4001
    assert tokenizer.encode(text).tolist() == tokenizer._processor.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\n", " ")
    assert not is_lossless(tokenizer, [text])  # its own normalization turns a newline into a space


def bases_tokenizer(*, leaves_out_others: bool = True) -> RustTokenizer:
    """Four letters and a pair of them. Its normalizer leaves out every other character, or it has none."""
    tokenizer = RustTokenizer(models.BPE({"A": 0, "C": 1, "G": 2, "T": 3, "GA": 4}, [("G", "A")]))
    if leaves_out_others:
        tokenizer.normalizer = normalizers.Replace(Regex("[^ACGT]"), "")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "text", "ids", "other"),
    [
        (moves_tokenizer(), "e2e4 e7e5 g1f3", [0, 1, 2], "e2e4  e7e5\ng1f3"),
        (bases_tokenizer(), "GATTACA", [4, 3, 3, 0, 1, 0], "GATTACA N"),
    ],
    ids=["moves", "bases"],
)
def test_a_vocabulary_without_an_unknown_token_covers_its_corpus(
    make_config, text_folder: Path, tmp_path: Path, tokenizer: RustTokenizer, text: str, ids: list[int], other: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    for file in text_folder.glob("*/*.txt"):
        file.write_text(text)
    (text_folder / "validation" / "doc0.txt").write_text(other)  # what decoding does not give back
    made = make_config(tokenizer=str(path))
    manifests = prepare(made)
    assert SegmentStore.open(made.store, "text", "train").tokens(0, 0, len(ids)).tolist() == ids
    assert [manifests[split].tokenizer.lossless for split in SPLITS] == [True, False, True]


def test_a_document_that_cannot_be_encoded_is_named(make_config, text_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(moves_tokenizer().to_str())
    for file in text_folder.glob("*/*.txt"):
        file.write_text("e2e4 e7e5")
    (text_folder / "train" / "doc3.txt").write_text("e2e4 Nf6 e7e5")
    reason = (
        r"document 'train/doc3\.txt': tokenizer .*tokenizer\.json has no token for 'Nf6', and none for unknown text: "
    )
    remedy = "choose a tokenizer with byte fallback or an unknown token, or leave the text out$"
    with pytest.raises(CorpusError, match=reason + remedy):
        prepare(make_config(tokenizer=str(path)))
    documents = [Document("train/doc3.txt", "", "e2e4 Nf6 e7e5")]
    with pytest.raises(CorpusError, match=reason):
        study([HuggingFaceTokenizer(path.read_bytes(), str(path))], documents)


def test_prepare_refuses_text_that_a_byte_pair_encoding_would_drop(
    make_config, text_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(bases_tokenizer(leaves_out_others=False).to_str())
    for file in text_folder.glob("*/*.txt"):
        file.write_text("GATTACA" * 1000)
    made = make_config(tokenizer=str(path))
    assert prepare(made)["train"].tokenizer.lossless
    (text_folder / "train" / "doc3.txt").write_text("GATTACA" * 1000 + "NNA")
    words = r"document 'train/doc3\.txt': tokenizer .*/tokenizer\.json has no token for 'NN', and none for unknown text"
    with pytest.raises(CorpusError, match=words):
        prepare(make_config(tokenizer=str(path), store=str(tmp_path / "other")))
    assert not (tmp_path / "other" / "text" / "train" / "manifest.json").exists()


@pytest.mark.parametrize(
    "make", [moves_tokenizer, lambda: bases_tokenizer(leaves_out_others=False)], ids=["moves", "bases"]
)
def test_a_split_is_replaced_only_once_its_documents_can_be_encoded(
    make: Callable[[], RustTokenizer], make_config, text_folder: Path, tmp_path: Path
) -> None:
    prepare(make_config())
    before = contents(make_config().folder)
    path = tmp_path / "tokenizer.json"
    path.write_text(make().to_str())
    with pytest.raises(CorpusError, match="has no token for"):
        prepare(make_config(tokenizer=str(path), overwrite=True))
    assert contents(make_config().folder) == before


@pytest.mark.parametrize(
    ("kind", "lacking"), [("wordpiece", "abx"), ("unigram", "x"), ("bpe", "x"), ("dropping bpe", "x")]
)
def test_a_model_without_a_token_says_for_what(kind: str, lacking: str) -> None:
    made = {
        "wordpiece": models.WordPiece({"ab": 0, "##c": 1}, unk_token="[UNK]"),  # type: ignore[call-arg]
        "unigram": models.Unigram([("a", -3.0), ("b", -3.0), ("ab", -1.0), ("c", -2.0)]),
        "bpe": models.BPE({"a": 0, "b": 1, "ab": 2, "c": 3}, [("a", "b")], unk_token="[UNK]"),
        "dropping bpe": models.BPE({"a": 0, "b": 1, "ab": 2, "c": 3}, [("a", "b")]),
    }
    tokenizer = RustTokenizer(made[kind])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    ours = HuggingFaceTokenizer(tokenizer.to_str().encode(), kind)
    assert ours.encode("abc ab").tolist() == tokenizer.encode("abc ab").ids
    with pytest.raises(
        TokenizerError, match=f"tokenizer {kind} has no token for '{lacking}', and none for unknown text"
    ):
        ours.encode("abc abx ab")


def test_a_byte_level_vocabulary_that_lacks_bytes_names_the_text() -> None:
    """As trained without `initial_alphabet`."""
    tokenizer = RustTokenizer(models.BPE({"Ġ": 0, "a": 1, "b": 2}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    ours = HuggingFaceTokenizer(tokenizer.to_str().encode())
    assert ours.decode(ours.encode("ab ba")) == "ab ba"
    with pytest.raises(TokenizerError, match="has no token for 'éé', and none for unknown text"):
        ours.encode("ab béé a")


@pytest.mark.parametrize("lacking", ["\x13", "\x00", "\U00050000"])
def test_control_characters_without_a_token_are_dropped(lacking: str) -> None:
    theirs = bases_tokenizer(leaves_out_others=False)
    ours = HuggingFaceTokenizer(theirs.to_str().encode())
    text = f"GA{lacking}TT{lacking}"
    for _ in range(2):
        assert ours.encode(text).tolist() == theirs.encode(text).ids == [4, 3, 3]
        for other, name in (("N", "N"), ("\n", r"\\n")):
            with pytest.raises(TokenizerError, match=f"has no token for '{name}', and none for unknown text"):
                ours.encode(f"{text}{other}")
    assert ours.encode(lacking).tolist() == [] and ours.encode(f"{lacking}GA").tolist() == [4]
    assert folded(ours) is None


def test_a_character_that_a_normalizer_composes_has_a_token() -> None:
    theirs = RustTokenizer(models.BPE({"a": 0, "e": 1, "é": 2}, []))
    theirs.normalizer = normalizers.NFC()  # type: ignore[assignment]
    ours = HuggingFaceTokenizer(theirs.to_str().encode())
    text = "ae\u0301a\x00"
    assert ours.encode(text).tolist() == theirs.encode(text).ids == [0, 2, 0]
    with pytest.raises(TokenizerError, match="has no token for 'x', and none for unknown text"):
        ours.encode(f"{text}x")


def test_byte_fallback_covers_every_text() -> None:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {"a": 256, **{name: byte for byte, name in enumerate(names)}}
    tokenizer = RustTokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # type: ignore[assignment]
    ours = HuggingFaceTokenizer(tokenizer.to_str().encode())
    assert ours.encode("aé").tolist() == [256, *"é".encode()] and is_lossless(ours, ["aé漢"])


@pytest.mark.parametrize("kind", ["unigram", "merges"])
def test_an_older_file_leaves_the_models_kind_to_the_library(kind: str) -> None:
    spec = json.loads(with_special_tokens(kind).to_str())
    typed = HuggingFaceTokenizer(json.dumps(spec).encode(), kind)
    del spec["model"]["type"]
    untyped = HuggingFaceTokenizer(json.dumps(spec).encode(), kind)
    for text in ("x </s> x", "x s xx"):
        assert untyped.encode(text).tolist() == typed.encode(text).tolist()


@pytest.mark.parametrize("decoder", [True, False])
@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("unigram", ["▁x", "▁", "</", "s", ">", "▁x"]),
        ("words", ["x", "<unk>", "x"]),  # as any other word that is not in the vocabulary
        ("pieces", ["x", "</", "##s", "##>", "x"]),
        ("merges", ["x", "</", "s>", "x"]),
        ("whole words", ["x", "</", "s", ">", "x"]),
    ],
)
def test_a_special_tokens_name_is_ordinary_text_for_every_model(kind: str, ids: list[str], decoder: bool) -> None:
    theirs = with_special_tokens(kind, decoder)
    ours = HuggingFaceTokenizer(theirs.to_str().encode(), kind)
    assert ours.encode("x </s> x").tolist() == [theirs.token_to_id(token) for token in ids]
    for text in ("x s xx", "</x é < x", "漢 x"):
        found = ours.encode(text).tolist()
        assert found == theirs.encode(text).ids and ours.decode(found) == theirs.decode(
            found, skip_special_tokens=False
        )
    every = list(range(len(SPECIAL) + 3))
    assert ours.decode(every) == theirs.decode(every, skip_special_tokens=False)
    assert ours.fingerprint == HuggingFaceTokenizer(ours.files()["hugging-face.json"]).fingerprint


def test_an_unknown_tokens_name_is_spelt() -> None:
    theirs = with_special_tokens("unigram")
    ours = HuggingFaceTokenizer(theirs.to_str().encode())
    spelt = ours.encode("<unk>").tolist()
    assert spelt == [theirs.token_to_id(token) for token in ["▁", *"<unk>"]] and ours.decode(spelt) == "<unk>"
    assert theirs.token_to_id("<unk>") in ours.encode("漢").tolist()


@pytest.mark.parametrize(
    "make",
    [
        BytesTokenizer,
        lambda: sentencepiece("unigram"),
        lambda: HuggingFaceTokenizer(moves_tokenizer().to_str().encode()),
    ],
)
@pytest.mark.parametrize("path", ["{}", "{}/tokenizer.json", "file://{}"])
def test_the_tokenizer_of_a_prepared_corpus(make, path: str, tmp_path: Path) -> None:
    tokenizer: Tokenizer = make()
    save_tokenizer(tokenizer, tmp_path)
    found = tokenizer_from_spec(path.format(tmp_path))
    assert not isinstance(found, TokenizerTraining) and type(found) is type(tokenizer)
    assert (found.name, found.fingerprint) == (tokenizer.name, tokenizer.fingerprint)


def test_two_corpora_share_a_tokenizer(make_config, tmp_path: Path) -> None:
    first = make_config(tokenizer="sentencepiece-bpe:300", splits=("train",))
    second = make_config(tokenizer=str(first.folder / "tokenizer"), splits=("train",), store=str(tmp_path / "second"))
    assert prepare(first)["train"].fingerprint == prepare(second)["train"].fingerprint
    assert prepare(make_config(tokenizer=str(first.folder / "tokenizer"), splits=("train",)))  # its own: nothing to do


def test_what_is_not_the_tokenizer_of_a_prepared_corpus(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match="is not the tokenizer of a prepared corpus: give STORE/CORPUS/tokenizer, or"
    ):
        tokenizer_from_spec(f"file://{tmp_path}")
    save_tokenizer(SymbolsTokenizer(["a", "b"]), tmp_path)
    with pytest.raises(TokenizerError, match="holds the symbols of a task, which are no tokens of another corpus"):
        tokenizer_from_spec(str(tmp_path))
    save_tokenizer(sentencepiece("unigram"), tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model is damaged"):
        tokenizer_from_spec(str(tmp_path))


def test_documents_without_tokens_are_counted_and_score_nothing(
    make_config, text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(bases_tokenizer().to_str())
    for file in text_folder.glob("*/*.txt"):
        file.write_text("GATTACA")
    for name in ("doc1", "doc4"):
        (text_folder / "train" / f"{name}.txt").write_text("漢字 漢字")
    made = make_config(tokenizer=str(path))
    prepare(made)
    sentence = "2 documents without tokens, left out of training and evaluation\n"
    shown = capsys.readouterr().out
    assert f"train: {sentence}" in shown and shown.count(sentence) == 1
    store = SegmentStore.open(made.store, "text", "train")
    describe(lines(), store)
    assert sentence in capsys.readouterr().out
    assert sorted(store.lengths.tolist()) == [0, 0, 6, 6, 6, 6, 6]
    score = score_of(store, store.lengths, np.array([[2.0], [30], [0]]), bucket=16, beyond=0)
    assert (score.documents, score.words, score.bytes) == (5, 5, 5 * len("GATTACA"))


def test_a_split_without_any_token_is_refused(make_config, text_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(bases_tokenizer().to_str())
    for file in text_folder.glob("*/*.txt"):
        file.write_text("漢字" if file.parent.name == "validation" else "GATTACA")
    made = make_config(tokenizer=str(path))
    with pytest.raises(
        TokenizerError, match=r"makes no token of any document of split validation: choose another tokenizer, or"
    ):
        prepare(made)
    assert not (made.folder / "validation").exists()
    assert prepare(make_config(tokenizer=str(path), splits=("train", "test"))).keys() == {"train", "test"}


def test_one_document_that_is_not_given_back_makes_a_tokenizer_lossy() -> None:
    class Small(BytesTokenizer):
        """Gives capitals back as small letters."""

        def decode(self, ids: np.ndarray | list[int]) -> str:
            return super().decode(ids).lower()

    documents = [Document(str(i), "", text) for i, text in enumerate(("A b", "a b"))]
    assert [row.lossless for row in study([BytesTokenizer(), Small()], documents)] == [True, False]
