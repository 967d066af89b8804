"""GPT-2's BPE and tokenizer.json files: ids identical to Hugging Face's on any text, and a sentence for every malformed file."""

from __future__ import annotations

import json
import re
import shutil
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from data_prep import lanes, parts
from data_prep.documents import CorpusError, Document
from data_prep.tokenizers import (
    GPT2Tokenizer,
    HuggingFaceTokenizer,
    TokenizerError,
    bod_id,
    is_lossless,
    load_tokenizer,
    save_tokenizer,
    tokenizer_from_spec,
)
from data_prep.tokenizers import gpt2 as module
from data_prep.tokenizers.hugging_face import PATTERNS
from tests.shared_data import need

SOURCE = (
    Path(lanes.__file__).read_text(encoding="utf-8") + "I'll we've it's 'd  漢字漢字 été 123 4567 🙂🙂\r\n\r\n   \t x"
)
TEXTS = st.one_of(
    st.text(max_size=80),
    st.text(st.sampled_from(list("ab'slret 1\n\t\r!\u00a0\u2028\u3000\x1c\x85é漢🙂")), max_size=80),
    st.lists(st.sampled_from(["<|endoftext|>", "def ", "  ", "\n\n", "'ll", " x", "lanes", "漢字", "."])).map("".join),
)


def byte_level(trained: RustTokenizer) -> RustTokenizer:
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    trained.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return trained


@pytest.fixture(scope="module")
def theirs() -> RustTokenizer:
    """A byte-level BPE that Hugging Face trained, with a special token first, as its trainers put it."""
    tokenizer = byte_level(RustTokenizer(models.BPE()))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )  # type: ignore[call-arg]
    tokenizer.train_from_iterator([SOURCE], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def folder(theirs: RustTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    theirs.model.save(str(folder))  # vocab.json and merges.txt
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> GPT2Tokenizer:
    """The same BPE, read from that folder."""
    return GPT2Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def from_json(theirs: RustTokenizer) -> HuggingFaceTokenizer:
    """The same BPE, read from a tokenizer.json and run by tiktoken."""
    tokenizer = HuggingFaceTokenizer(theirs.to_str().encode())
    assert tokenizer.details()["engine"] == "tiktoken"
    return tokenizer


def plain(tokenizer: RustTokenizer, text: str) -> list[int]:
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids


@settings(deadline=None, max_examples=500)
@given(text=TEXTS, cut=st.booleans())
def test_ids_are_hugging_faces(theirs: RustTokenizer, ours: GPT2Tokenizer, text: str, cut: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if cut:
            patch.setattr(module, "CUTS", replace(module.CUTS, characters=0))
        ids = ours.encode(text)
    assert ids.tolist() == plain(theirs, text)
    assert ours.decode(ids) == text and bod_id(ours) not in ids


def test_long_words_are_encoded(theirs: RustTokenizer, ours: GPT2Tokenizer) -> None:
    for text in ("a" * 30_000, " " * 30_000 + "x", "é!" * 20_000, "\n" * 10_000, "-" * 70_000):
        assert ours.encode(text).tolist() == plain(theirs, text)


def test_blanks_on_which_tiktoken_gives_up(theirs: RustTokenizer, ours: GPT2Tokenizer) -> None:
    text = " " * 1_100_000 + "x"
    with pytest.raises(ValueError, match="backtracking"):
        ours._encoding.encode_to_numpy(text, disallowed_special=())
    assert ours.encode(text).tolist() == plain(theirs, text)


BATCHES = st.lists(
    st.one_of(
        TEXTS,
        st.sampled_from(["", " ", "\n\n  ", "  x \t", "<|endof", "<|endoftext|", "text|>", "|>", "<", "<|endoftext|>"]),
        st.sampled_from(
            ["'", "s", "e\u0301", "\u0308", "👩\u200d👩\u200d👧", "🙂", "\ufe0f", "नमस्कार", "\u3000x\u3000"]
        ),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=150)
@given(texts=BATCHES)
def test_ids_of_a_batch_are_those_of_each_text(
    theirs: RustTokenizer, ours: GPT2Tokenizer, from_json: HuggingFaceTokenizer, cut_files: CutFiles, texts: list[str]
) -> None:
    for tokenizer in (ours, cut_files["gpt2"][0], from_json):
        ids, lengths = tokenizer.encode_batch(texts)
        assert ids.dtype == np.uint16 and lengths.dtype == np.int64
        assert [part.tolist() for part in np.split(ids, np.cumsum(lengths))] == [
            *(plain(theirs, text) for text in texts),
            [],
        ]


def test_a_batch_with_blanks_on_which_tiktoken_gives_up(ours: GPT2Tokenizer) -> None:
    texts = ["a b", " " * 1_100_000 + "x", "c"]
    encoded = parts._encode_all([Document("", "", text) for text in texts], 5, ours)
    first, blanks, last = np.split(encoded.tokens, np.cumsum(encoded.lengths)[:-1])
    assert np.array_equal(first, ours.encode("a b")) and np.array_equal(last, ours.encode("c"))
    assert ours.decode(blanks) == texts[1]


def test_a_document_of_a_batch_that_cannot_be_encoded_is_named(ours: GPT2Tokenizer) -> None:
    documents = [Document(id, "", text) for id, text in (("first", "a"), ("second", "\ud800"), ("third", "b"))]
    with pytest.raises(CorpusError, match=r"document 'second': tokenizer .* cannot encode the text .*surrogates"):
        parts._encode_all(documents, 0, ours)


@pytest.mark.parametrize("blank", [" ", "\n\u3000\x85\t"])
def test_long_runs_of_blanks_are_words_of_their_own(theirs: RustTokenizer, ours: GPT2Tokenizer, blank: str) -> None:
    run = blank * 2000
    for text in (f"a{run[:-1]} b\x1c{run}\x1d{run}", f"{run}x", f"x  {run}'s", run):
        ids = [index for part in ours._at_long_runs(text) for index in ours._ids(*part).tolist()]
        assert ids == plain(theirs, text)


def test_the_name_of_a_special_token_is_ordinary_text(theirs: RustTokenizer, ours: GPT2Tokenizer) -> None:
    special = theirs.token_to_id("<|endoftext|>")
    assert special is not None
    text = "one<|endoftext|>two"
    file = HuggingFaceTokenizer(theirs.to_str().encode(), engine="tokenizers")
    for tokenizer in (ours, file):
        ids = tokenizer.encode(text)
        assert special not in ids and tokenizer.decode(ids) == text
        assert tokenizer.decode([special, *ids, bod_id(tokenizer)]) == "<|endoftext|>" + text


def test_both_layouts_and_the_saved_one_are_one_tokenizer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "openai").mkdir()
    shutil.copy(folder / "vocab.json", tmp_path / "openai" / "encoder.json")
    shutil.copy(folder / "merges.txt", tmp_path / "openai" / "vocab.bpe")
    one, other = tokenizer_from_spec(str(folder)), tokenizer_from_spec(f"gpt2:{tmp_path / 'openai'}")
    assert isinstance(one, GPT2Tokenizer) and isinstance(other, GPT2Tokenizer)
    save_tokenizer(other, tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert one.fingerprint == other.fingerprint == loaded.fingerprint
    assert np.array_equal(loaded.encode(SOURCE), one.encode(SOURCE)) and is_lossless(loaded, [SOURCE])
    merges = (tmp_path / "saved" / "merges.txt").read_text().split("\n")
    (tmp_path / "saved" / "merges.txt").write_text("\n".join(merges[:-3]))
    with pytest.raises(TokenizerError, match="damaged"):
        load_tokenizer(tmp_path / "saved")


def test_other_ids_for_the_same_merges_are_kept(theirs: RustTokenizer, folder: Path) -> None:
    vocab = theirs.get_vocab()
    shuffled = dict(zip(vocab, np.random.default_rng(0).permutation(70_000)[: len(vocab)].tolist(), strict=True))
    merges = module.read_merges((folder / "merges.txt").read_bytes(), folder)
    ours = GPT2Tokenizer(shuffled, merges)
    ids = ours.encode(SOURCE)
    assert ids.dtype == np.uint32 and ids.tolist() == [
        shuffled[theirs.id_to_token(i) or ""] for i in plain(theirs, SOURCE)
    ]
    assert ours.decode(ids) == SOURCE


LETTERS = {letter: i for i, letter in enumerate(module.byte_letters().values())}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12), st.lists(st.text("abc", max_size=12)))
def test_merges_that_pass_the_check_are_read_alike_by_both(pairs: list[tuple[int, int]], texts: list[str]) -> None:
    tokens, merges = ["a", "b", "c"], []
    for left, right in pairs:
        pair = (tokens[left % len(tokens)], tokens[right % len(tokens)])
        merges.append(pair)
        tokens.append("".join(pair))
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*LETTERS, *tokens]))}
    try:
        ours = GPT2Tokenizer(vocab, merges)
    except TokenizerError as error:
        assert re.search("twice|impossible", str(error))
        return
    theirs = byte_level(RustTokenizer(models.BPE(vocab=vocab, merges=merges)))
    for text in [*texts, "abcabacbcbaabccba" * 5]:
        assert ours.encode(text).tolist() == theirs.encode(text).ids


def test_merges_that_tiktoken_would_read_otherwise_are_refused() -> None:
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]  # "abc" begins with b+c: ab+c never comes about
    vocab = LETTERS | {"bc": 256, "ab": 257, "abc": 258}
    with pytest.raises(TokenizerError, match="has the merge 'ab c', which the merges before it make impossible"):
        GPT2Tokenizer(vocab, merges)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.json", b"{", r"vocab\.json is not a vocabulary in JSON .*: give the file as it was released"),
        ("vocab.json", b"\xff", r"vocab\.json is not a vocabulary in JSON"),
        ("vocab.json", b"[" * 100_000, r"vocab\.json is not a vocabulary in JSON .it is nested too deeply"),
        ("vocab.json", b"[1]", r"vocab\.json is not a table of tokens and ids"),
        ("vocab.json", b'{"a": "0"}', r"vocab\.json gives the token 'a' the id '0'"),
        ("vocab.json", b'{"a": -1}', r"gives the token 'a' the id -1"),
        ("vocab.json", b'{"a": 99999999999}', r"gives the token 'a' the id 99999999999"),
        ("vocab.json", b'{"a": 0, "b": 0}', r"gives the id 0 to 'a' and to 'b'"),
        ("vocab.json", b'{"a": 0}', r"is not a byte-level BPE: its vocabulary lacks the byte 0x21 \(!\)"),
        ("merges.txt", b"#version: 0.2\na b\nabc\n", r"merges\.txt has no pair of tokens in line 3 \('abc'\)"),
        ("merges.txt", b"\xff", r"merges\.txt is not UTF-8"),
        ("merges.txt", "Ā Ā Ā".encode(), "in line 1"),
        ("merges.txt", "Ā zzzz".encode(), "its vocabulary lacks 'Ā', 'zzzz' or 'Āzzzz', which its merges name"),
    ],
)
def test_malformed_files(folder: Path, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=words):
        tokenizer_from_spec(f"gpt2:{tmp_path / 'copy'}")


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"holds no tokenizer: give a folder with tokenizer\.json, a \.model file, or vocab"
    ):
        tokenizer_from_spec(str(tmp_path))
    with pytest.raises(
        TokenizerError, match=r"has neither vocab\.json and merges\.txt nor encoder\.json and vocab\.bpe"
    ):
        tokenizer_from_spec(f"gpt2:{tmp_path}")


# tokenizer.json

ALPHABET = string.ascii_letters + string.digits + "абвгдежзийклмнопрстуфхцчшщъыьэюяאבגדה가나다"
OTHERS = [
    *("Привет, мир", " и ёлка", " \u0308", "Й ", " \u0438\u0306 й", "שלום עולם", " 한국어 텍스트", "Đặng Thị é à"),
    *("ﬃ ẚ b", "\u00a0", "漢字 漢"),
]


def pipelines(theirs: RustTokenizer) -> dict[str, RustTokenizer]:
    """Files of other kinds; the vocabulary is of no matter."""
    words = dict.fromkeys(["[UNK]", *ALPHABET, *(f"##{c}" for c in ALPHABET), *SOURCE.lower().split()])
    vocab = {word: i for i, word in enumerate(words)}
    bert = RustTokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # type: ignore[call-arg]
    bert.normalizer = normalizers.BertNormalizer()  # type: ignore[assignment]
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    bert.add_tokens([AddedToken("漢字", normalized=False), AddedToken("ёлка")])
    bert.enable_truncation(8)
    bert.enable_padding(length=64)
    pieces = [
        ("[UNK]", 0.0),
        ("▁", -2.0),
        *((c, -9.0 - i / 100) for i, c in enumerate("abcdefghijklmnopqrstuvwxyz.,приветмлкаёשלוםע")),
        ("▁the", -3.0),
    ]
    t5 = RustTokenizer(models.Unigram(pieces, unk_id=0))  # type: ignore[call-arg]
    t5.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])  # type: ignore[assignment]
    t5.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    llama = RustTokenizer.from_str(theirs.to_str())
    split = pre_tokenizers.Split(Regex(max(PATTERNS, key=len)), "isolated")
    llama.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])  # type: ignore
    llama.add_tokens([AddedToken("lanes"), AddedToken("   ")])
    prefixed = RustTokenizer.from_str(theirs.to_str())
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[assignment]
    return {
        "bert": bert,
        "t5": t5,
        "llama": llama,
        "prefixed": prefixed,
        "gpt2": RustTokenizer.from_str(theirs.to_str()),
    }


CutFiles = dict[str, tuple[HuggingFaceTokenizer, RustTokenizer]]


@pytest.fixture(scope="module")
def cut_files(theirs: RustTokenizer) -> CutFiles:
    """Each of `pipelines`: ours, which cuts texts into pieces as short as they can be, and theirs, which reads them whole."""
    found = {}
    for kind, whole in pipelines(theirs).items():
        tokenizer = HuggingFaceTokenizer(whole.to_str().encode(), kind, engine="tokenizers")
        assert tokenizer.cuts
        tokenizer.cuts = replace(tokenizer.cuts, characters=0)
        whole.no_truncation()
        whole.no_padding()
        found[kind] = tokenizer, whole
    return found


@pytest.mark.parametrize("kind", ["bert", "t5", "llama", "prefixed", "gpt2"])
@settings(deadline=None)
@given(
    text=st.one_of(
        TEXTS,
        st.lists(st.sampled_from(["The lanes", " of a", " \u0308", " lanes", "\n", "x  y"])).map("".join),
        st.lists(st.sampled_from([*OTHERS, " ", "x "])).map("".join),
    )
)
def test_pieces_of_a_file_do_not_change_the_ids(cut_files: CutFiles, kind: str, text: str) -> None:
    tokenizer, whole = cut_files[kind]
    assert tokenizer.encode(text).tolist() == plain(whole, text)


@pytest.mark.parametrize("content", ["x\u00a0y", "x¨y", "x y", "\u00a0y"])
def test_an_added_token_that_may_lie_across_a_cut(content: str) -> None:
    """NFKC writes a no-break space as a blank, and so what the library looks for."""
    vocab = {"<unk>": 0, "x": 1, "y": 2, "ab": 3, "cd": 4}
    tokenizer = RustTokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.add_tokens([AddedToken(content, normalized=True)])
    ours = HuggingFaceTokenizer(tokenizer.to_str().encode())
    text = "ab cd x y " * 3000
    assert ours.encode(text).tolist() == plain(tokenizer, text)
    assert 5 in ours.encode(text)
    assert ours.cuts is None


@pytest.mark.parametrize("content", ["xy", "\u00a0\u00a0", "\u3000 "])
def test_an_added_token_that_lies_across_no_cut(content: str) -> None:
    tokenizer = RustTokenizer(models.WordLevel({"<unk>": 0, "ab": 1}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.add_tokens([AddedToken(content, normalized=True)])
    ours = HuggingFaceTokenizer(tokenizer.to_str().encode())
    assert ours.cuts
    ours.cuts = replace(ours.cuts, characters=0)
    text = "ab xy ab  ab ab\u00a0 ab\u3000ab ab" * 3
    assert ours.encode(text).tolist() == plain(tokenizer, text)


@pytest.mark.parametrize("kind", ["bert", "t5", "llama", "prefixed"])
def test_texts_of_other_scripts_are_cut(cut_files: CutFiles, kind: str) -> None:
    tokenizer, whole = cut_files[kind]
    for text in ("Привет мир и ёлка " * 99, "שלום עולם " * 99, "안녕하세요 세계 " * 99, "नमस्कार मन घर " * 99):
        assert tokenizer.cuts and max(map(len, tokenizer.cuts.pieces(text))) < 30
        assert tokenizer.encode(text).tolist() == plain(whole, text)


def test_files_are_kept_and_run_by_the_fastest_engine(theirs: RustTokenizer, tmp_path: Path) -> None:
    for kind, tokenizer in pipelines(theirs).items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "tokenizer.json").write_text(tokenizer.to_str())
        ours = tokenizer_from_spec(str(tmp_path / kind))
        assert isinstance(ours, HuggingFaceTokenizer) and ours.name == f"{kind}/tokenizer.json"
        assert ours.details()["engine"] == ("tiktoken" if kind == "gpt2" else "tokenizers")
        assert bod_id(ours) == tokenizer.get_vocab_size() == ours.vocab_size - 1
        save_tokenizer(ours, tmp_path / "saved" / kind)
        loaded = load_tokenizer(tmp_path / "saved" / kind)
        assert (loaded.fingerprint, loaded.details()) == (ours.fingerprint, ours.details())
        assert np.array_equal(loaded.encode(SOURCE), ours.encode(SOURCE)) and len(ours.encode(SOURCE)) > 1000
        assert is_lossless(ours, [SOURCE]) == (kind in ("llama", "gpt2"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec.clear(), "is not a tokenizer.json that Hugging Face's library can read"),
        (lambda spec: spec["model"].update(type="Abacus"), "can read"),
        (
            lambda spec: spec["model"].update(dropout=0.1),
            r"drops merges at random \(dropout 0.1\): set its dropout to null",
        ),
        (lambda spec: spec["model"].update(vocab={}, merges=[]) or spec.update(added_tokens=[]), "has no tokens"),
        (lambda spec: spec["model"]["vocab"].update(stray=1 << 31), r"has the id 2,147,483,648, and ids below"),
    ],
)
def test_malformed_tokenizer_json(theirs: RustTokenizer, tmp_path: Path, change: Any, words: str) -> None:
    spec = json.loads(theirs.to_str())
    change(spec)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json .*{words}|{words}"):
        tokenizer_from_spec(str(tmp_path / "tokenizer.json"))
    for data in (b"", b"{}", b"[]", b"\xff", b"null", b"[" * 100_000):
        with pytest.raises(TokenizerError, match="can read"):
            HuggingFaceTokenizer(data)


@pytest.mark.real_data
@pytest.mark.slow
def test_gpt2s_ids_on_real_texts() -> None:
    """Some of each corpus; `python -m benchmarks.gpt2_ids` reads all of them."""
    gpt2 = need("tokenizers", "gpt2")
    ours = GPT2Tokenizer.from_folder(gpt2)
    theirs = byte_level(RustTokenizer(models.BPE.from_file(str(gpt2 / "vocab.json"), str(gpt2 / "merges.txt"))))
    assert ours.vocab_size == 50_258 and ours.fingerprint == module.RELEASED[1]
    proved = GPT2Tokenizer(ours.vocab, ours.merges)  # from tables, not from the released bytes
    assert (proved.fingerprint, proved.vocab_size) == (ours.fingerprint, ours.vocab_size) and not module._improper(
        ours.merges
    )
    texts = ["wikitext/wikitext-2-raw/wiki.test.raw", "enwik8/enwik8.prefix4154399", "arxiv/stacks-sites", "pg19/test"]
    for path in map(need, texts):
        file = path if path.is_file() else max(path.glob("*.t*x*"), key=lambda one: one.stat().st_size)
        text = file.read_bytes().decode()[:1_000_000]
        assert np.array_equal(ours.encode(text), theirs.encode(text).ids), path
