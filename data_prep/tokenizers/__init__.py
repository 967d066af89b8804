"""Text to token ids and back: UTF-8 bytes, SentencePiece, GPT-2's BPE, any Hugging Face `tokenizer.json`, a task's symbols.

Every vocabulary ends with one id of our own, begin-of-document: `bod_id = vocab_size - 1`. A store keeps its tokenizer in
`<store>/<corpus>/tokenizer/`, so that evaluation and generation need nothing else:

    tokenizer = load_tokenizer(Path("runs/store/python-source/tokenizer"))
    tokenizer.decode(tokenizer.encode("def f():\\n"))

`--tokenizer` takes `bytes`; `sentencepiece:32000` or `sentencepiece-bpe:32000`, trained on the train split; the path of a
SentencePiece model or of a `tokenizer.json`, or of a folder that holds one, or GPT-2's two files (which `gpt2:FOLDER` insists on);
or `STORE/CORPUS/tokenizer`, the tokenizer of a prepared corpus, in a bucket too.
A corpus that labels its tokens itself has its own symbols as tokens.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import xxhash

from common.errors import nearest
from common.files import parse_json, seal, unseal
from common.model_folder import read_json
from common.places import Place
from common.uris import is_uri
from data_prep.tokenizers.base import (
    BatchTokenizer,
    Tokenizer,
    TokenizerError,
    as_text,
    bod_id,
    concatenate,
    folded,
    is_lossless,
    token_dtype,
)
from data_prep.tokenizers.byte import BytesTokenizer
from data_prep.tokenizers.chat import CHAT_FILE, Chat, read_chat, read_template
from data_prep.tokenizers.gpt2 import FILES, GPT2Tokenizer
from data_prep.tokenizers.hugging_face import HuggingFaceTokenizer
from data_prep.tokenizers.sentence_piece import Recipe, SentencePieceTokenizer
from data_prep.tokenizers.symbols import SymbolsTokenizer, encode_labelled
from data_prep.tokenizers.training import MIN_PIECES, TokenizerTraining, shortfall, train_sentencepiece

__all__ = [
    "CHAT_FILE",
    "TOKENIZER_FOLDER",
    "BatchTokenizer",
    "BytesTokenizer",
    "GPT2Tokenizer",
    "HuggingFaceTokenizer",
    "SentencePieceTokenizer",
    "SymbolsTokenizer",
    "Tokenizer",
    "TokenizerError",
    "TokenizerTraining",
    "about_chat",
    "as_text",
    "bod_id",
    "chat_of",
    "concatenate",
    "encode_labelled",
    "folded",
    "is_lossless",
    "keep_tokenizer",
    "kept_fingerprint",
    "load_tokenizer",
    "save_tokenizer",
    "shortfall",
    "token_dtype",
    "tokenizer_from_spec",
    "train_sentencepiece",
]

SPECS = (
    "bytes",
    "sentencepiece:2048",
    "sentencepiece-bpe:2048",
    "gpt2:path/to/folder",
    "path/to/a.model",
    "path/to/tokenizer.json",
    "path/to/store/corpus/tokenizer",
)

TOKENIZER_FOLDER = "tokenizer"
"""Name of the folder of a tokenizer's own files, in a corpus of a store and in an exported model's folder."""
RESTORE = "run the same prepare command again, which restores it"


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path | Place) -> None:
    """Write the tokenizer's files and, last, `tokenizer.json` with their checksums; each atomically."""
    place = Place.parse(folder)
    files = tokenizer.files()
    place.make_folder()
    for name, data in files.items():
        (place / name).write_atomically(data)
    details = {
        **tokenizer.details(),
        "vocab_size": tokenizer.vocab_size,
        "bod_id": bod_id(tokenizer),
        "fingerprint": tokenizer.fingerprint,
        "files": {name: xxhash.xxh3_128_hexdigest(data) for name, data in files.items()},
    }
    (place / "tokenizer.json").write_atomically(seal(details))


def keep_tokenizer(tokenizer: Tokenizer, folder: str | Path | Place) -> None:
    """Save the tokenizer where it is not there yet, or where it now has another chat template."""
    with contextlib.suppress(TokenizerError):
        kept = load_tokenizer(folder)
        if kept.fingerprint == tokenizer.fingerprint and chat_of(tokenizer) in (None, chat_of(kept)):
            return
    save_tokenizer(tokenizer, folder)


def chat_of(tokenizer: Tokenizer) -> Chat | None:
    """The chat template and special tokens of the tokenizer's model; None if its folder had none."""
    return tokenizer.chat if isinstance(tokenizer, HuggingFaceTokenizer) else None


def about_chat(tokenizer: Tokenizer, spec: str) -> list[str]:
    """Sentences on the chat template in the folder that `--tokenizer` named, and on its special tokens; none without one."""
    chat = chat_of(tokenizer)
    if chat is not None:
        such_as = f", such as {chat.special_tokens['eos_token']}," if "eos_token" in chat.special_tokens else ""
        return [
            f"tokenizer {tokenizer.name} has a chat template: exports and `generate --chat` prompt with it; in documents the "
            f"names of its special tokens{such_as} are read as text, not as their ids"
        ]
    path = Path(os.path.expanduser(spec.removeprefix("gpt2:")))
    if not path.exists():  # a kind to train, such as sentencepiece:8192
        return []
    folder = path if path.is_dir() else path.parent
    if spec in ("", "bytes") or isinstance(tokenizer, SymbolsTokenizer) or not read_template(folder):
        return []
    return [
        f"warning: the chat template in {folder} is left out, because it needs a tokenizer.json: give the folder one, or save it "
        "anew with transformers"
    ]


def kept_fingerprint(folder: Place) -> str:
    """The fingerprint of the tokenizer that a store keeps; of its files only `tokenizer.json` is read.

    Raises TokenizerError where a file is missing, or `tokenizer.json` is damaged.
    """
    details = _details(folder, RESTORE)
    found = {file.name for file in folder.list()}
    for name in details["files"]:
        if name not in found:
            raise TokenizerError(f"{folder / name} is missing: {RESTORE}")
    return details["fingerprint"]


def _details(folder: Place, remedy: str) -> dict[str, Any]:
    """The contents of a kept tokenizer's `tokenizer.json`. Raises TokenizerError where it is missing, and with the remedy where it
    is damaged.
    """
    path = folder / "tokenizer.json"
    try:
        details = unseal(path.read_bytes())
        return {**details, "files": dict(details["files"]), "fingerprint": details["fingerprint"]}
    except FileNotFoundError:
        raise TokenizerError(f"{path} is missing: {RESTORE}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{path} is damaged ({error}): {remedy}") from None


def load_tokenizer(folder: str | Path | Place) -> Tokenizer:
    """The tokenizer that a store keeps. Raises TokenizerError where it is missing or not the one that was saved."""
    folder = Place.parse(folder)
    path = folder / "tokenizer.json"
    remedy = "prepare the corpus again with --overwrite"
    details = _details(folder, remedy)
    try:
        for name, checksum in details["files"].items():
            if xxhash.xxh3_128_hexdigest((folder / name).read_bytes()) != checksum:
                raise TokenizerError(f"{folder / name} is damaged (its checksum does not match): {remedy}")
        kind = details["kind"]
        fingerprint = details["fingerprint"]
        if kind == "bytes":
            tokenizer: Tokenizer = BytesTokenizer()
        elif kind == "sentencepiece":
            recipe = Recipe(**details["trained"]) if details["trained"] else None
            tokenizer = SentencePieceTokenizer((folder / "tokenizer.model").read_bytes(), details["name"], recipe)
        elif kind == "gpt2":
            tokenizer = GPT2Tokenizer.from_files(
                folder / "vocab.json", folder / "merges.txt", details["name"], check=False
            )
        elif kind == "hugging-face":
            data = (folder / "hugging-face.json").read_bytes()
            chat = Chat.from_json((folder / CHAT_FILE).read_bytes()) if CHAT_FILE in details["files"] else None
            tokenizer = HuggingFaceTokenizer(data, details["name"], details["engine"], chat)
        elif kind == "symbols":
            tokenizer = SymbolsTokenizer(details["symbols"])
        else:
            raise TokenizerError(f"{path} names the unknown tokenizer kind {kind!r}: {remedy}")
    except FileNotFoundError as error:
        raise TokenizerError(f"{error.filename} is missing: {RESTORE}") from None
    except TokenizerError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{path} is damaged ({error}): {remedy}") from None
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(f"the tokenizer in {folder} is damaged (its fingerprint does not match): {remedy}")
    return tokenizer


def tokenizer_from_spec(spec: str) -> Tokenizer | TokenizerTraining:
    """The tokenizer that the `--tokenizer` option names.

    Raises TokenizerError for an unknown spec, a missing file, or a file that is not a tokenizer.
    """
    if spec == "bytes":
        return BytesTokenizer()
    if is_uri(spec):
        return _from_store(Place.parse(spec))
    kind, colon, rest = spec.partition(":")
    if kind in ("sentencepiece", "sentencepiece-bpe"):
        if not re.fullmatch(r"[0-9]{1,6}", rest, re.ASCII) or int(rest) < MIN_PIECES:
            raise TokenizerError(
                f"tokenizer {spec!r} needs a number of pieces, {MIN_PIECES} or more, below a million: write {kind}:2048"
            )
        return TokenizerTraining(spec, "bpe" if kind.endswith("bpe") else "unigram", int(rest))
    if kind == "gpt2" and colon:
        folder = Path(os.path.expanduser(rest))
        if not rest or not folder.is_dir():
            raise TokenizerError(
                f"tokenizer {spec!r} needs a folder: write gpt2:FOLDER, with vocab.json and merges.txt in it"
            )
        return GPT2Tokenizer.from_folder(folder)
    path = Path(os.path.expanduser(spec))
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_file(path)
    if "/" in spec or path.suffix in (".model", ".json"):
        kind = "SentencePiece .model file" if path.suffix == ".model" else "tokenizer.json, or of a tokenizer's folder"
        raise TokenizerError(f"{path} does not exist: give the path of a {kind}")
    raise TokenizerError(f"unknown tokenizer {spec!r}, and no such folder: {nearest(spec, SPECS)}")


def _from_file(path: Path) -> Tokenizer:
    if path.suffix == ".json":
        data = path.read_bytes()
        if _is_ours(data):
            return _from_store(Place.parse(path.parent))
        tokenizer = HuggingFaceTokenizer(data, str(path))
        tokenizer.name = f"{path.absolute().parent.name}/{path.name}"
        tokenizer.chat = read_chat(path.parent, tokenizer.added_ids)
        return tokenizer
    try:
        return SentencePieceTokenizer(path.read_bytes(), path.name)
    except TokenizerError:
        raise TokenizerError(
            f"{path} is not a SentencePiece model: give a .model file that SentencePiece wrote, or train one with "
            "--tokenizer sentencepiece:2048"
        ) from None


def _is_ours(data: bytes) -> bool:
    """Whether a `tokenizer.json` is one that `save_tokenizer` wrote."""
    try:
        details = parse_json(data)
    except ValueError:
        return False
    return isinstance(details, dict) and {"kind", "bod_id", "fingerprint"} <= details.keys()


def _from_store(folder: Place) -> Tokenizer:
    if not (folder / "tokenizer.json").exists():
        raise TokenizerError(
            f"{folder} is not the tokenizer of a prepared corpus: give STORE/CORPUS/tokenizer, or a file on this machine"
        )
    tokenizer = load_tokenizer(folder)
    if isinstance(tokenizer, SymbolsTokenizer):
        raise TokenizerError(
            f"{folder} holds the symbols of a task, which are no tokens of another corpus: choose another"
        )
    return tokenizer


def _from_folder(folder: Path) -> Tokenizer:
    """The tokenizer that a folder holds. `tokenizer.json` comes first, since it says more than GPT-2's two files.

    An exported model's own comes before that: transformers' form of it has begin-of-document as one more token.
    """
    own = folder / TOKENIZER_FOLDER / "tokenizer.json"
    if own.is_file() and _is_ours(own.read_bytes()):
        return _from_store(Place.parse(own.parent))
    if "begin_of_document_id" in read_json(folder / "config.json"):
        raise TokenizerError(
            f"the tokenizer in {folder} has begin-of-document as one more token, since transformers has saved an exported model "
            "again: give the folder that pipelines.export made, or STORE/CORPUS/tokenizer"
        )
    if (folder / "tokenizer.json").is_file():
        return _from_file(folder / "tokenizer.json")
    if any(all((folder / name).is_file() for name in names) for names in FILES):
        return GPT2Tokenizer.from_folder(folder)
    models = sorted(folder.glob("*.model"))
    if len(models) == 1:
        return _from_file(models[0])
    if models:
        raise TokenizerError(f"{folder} holds {len(models)} .model files: name one of them, such as {models[0]}")
    raise TokenizerError(
        f"{folder} holds no tokenizer: give a folder with tokenizer.json, a .model file, or vocab.json and merges.txt"
    )
