"""Writes a checkpoint as a folder that transformers opens, for `pipelines.export` and for the model that MLflow keeps.

    export(Checkpoint.open(folder), Path("exported/demo-rec"))

Before the folder appears it is opened again: its model must give the same logits and its tokenizer the same ids as ours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as RustTokenizer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from common.errors import NO_ROOM, UserError
from common.lock import file_lock
from data_prep.manifest import StoreError
from data_prep.store import SegmentStore
from data_prep.tokenizers import (
    TOKENIZER_FOLDER,
    GPT2Tokenizer,
    HuggingFaceTokenizer,
    SentencePieceTokenizer,
    SymbolsTokenizer,
    Tokenizer,
    TokenizerError,
    bod_id,
    chat_of,
    keep_tokenizer,
)
from data_prep.tokenizers.chat import Chat
from pipelines.checkpoints.checkpoint import Snapshot, writing_tensors
from pipelines.checkpoints.exported import record_of
from pipelines.inference.card import card_of
from pipelines.inference.plain_export import check_has_plain_form, check_logits, check_plain, plain
from pipelines.inference.trained import Form, config_of, eos_ids, model_of, tokenizer_of
from recur_models import RecurrentModel
from recur_models.bundle import TOKENIZER
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from recur_models.hf_tokenizer import (
    BEGIN_OF_DOCUMENT,
    PARTS,
    ThroughlineTokenizer,
    byte_pair_tokenizer,
    byte_tokenizer,
    symbol_tokenizer,
    tokenizer_of_file,
)

SAMPLES = (
    "",
    " ",
    "def f(x):\n\treturn  x  # ünïcödé, 漢字, Ωμέγα, 🙂👩‍👩‍👧\r\n",
    "<unk><s></s>[PAD] <|begin_of_document|> x<|begin_of_document|> <|endoftext|>[CLS] <0x0A> ▁ \x00\x7f\u200b\ufeff\ufffd ﬁ ①",
    "One line and\n\n\n    another.  " * 300,
)
"""Texts on which the tokenizers are compared, besides the beginning of the corpus."""
CORPUS_TOKENS = 20_000
"""Tokens of the corpus on which the tokenizers are compared."""


def export(checkpoint: Snapshot, output: Path, store: str = "", form: Form = "throughline") -> Tokenizer:
    """Write the folder, check it, and only then give it its name. Returns the run's tokenizer.

    ``form``: our classes, or transformers' own class of the model (plain_export.py).

    Raises:
        UserError: ``output`` exists, or the tokenizer cannot be found, or cannot be exported with the same ids.
    """
    check_is_new(output)
    disable_progress_bar()
    plain_form = check_has_plain_form(config_of(checkpoint), checkpoint.folder) if form == "transformers" else None
    tokenizer = tokenizer_of(checkpoint, store)
    if plain_form and isinstance(tokenizer, SymbolsTokenizer):
        raise UserError(f"{checkpoint.folder} predicts labels and not the next token: leave out --format transformers")
    model = model_of(checkpoint)
    wrapped = wrapped_model(checkpoint, tokenizer, model)
    exported = plain(wrapped, plain_form) if plain_form else wrapped
    working = output.with_name(f".{output.name}.tmp")
    with file_lock(working, "another pipelines.export"):
        unfinished = working / "export"
        shutil.rmtree(unfinished, ignore_errors=True)  # what a killed command has left
        try:
            check_is_new(output)  # another command may have made it since
            with writing_tensors(output):
                exported.save_pretrained(unfinished)
            save_tokenizer(tokenizer, unfinished)
            (unfinished / "README.md").write_text(card_of(checkpoint, model, tokenizer, plain_form), "utf-8")
            check_tokenizer(unfinished, tokenizer, sample_texts(checkpoint, tokenizer, store))
            if plain_form:
                check_plain(unfinished, model, plain_form)
            else:
                check_model(unfinished, model)
            mode = unfinished.stat().st_mode & 0o666  # safetensors writes for its owner alone, whatever the umask
            for path in filter(Path.is_file, unfinished.rglob("*")):
                path.chmod(mode)
            os.rename(unfinished, output)
        except OSError as error:
            if error.errno not in NO_ROOM or error.filename is not None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), str(output)) from None  # transformers names no file
        finally:
            shutil.rmtree(working, ignore_errors=True)
    return tokenizer


def check_is_new(output: Path) -> None:
    """Raise UserError if there is something at the folder's place."""
    if os.path.lexists(output):  # or a link that leads nowhere, in whose place no folder can come
        raise UserError(f"{output} exists already: name a new folder with --output")


def wrapped_model(checkpoint: Snapshot, tokenizer: Tokenizer, model: RecurrentModel) -> ThroughlineForCausalLM:
    """The model as one of transformers, with a copy of its weights."""
    config = ThroughlineConfig(
        model=given_away(checkpoint),
        vocab_size=checkpoint.meta["vocab_size"],
        trained=record_of(checkpoint),
        predicts_labels=isinstance(tokenizer, SymbolsTokenizer),
        **special_ids(checkpoint, tokenizer),
    )
    with torch.device("meta"):  # the checkpoint has all weights
        wrapped = ThroughlineForCausalLM(config)
    wrapped = wrapped.to_empty(device="cpu")
    wrapped.model.load_state_dict(model.state_dict())
    return wrapped


def given_away(checkpoint: Snapshot) -> dict[str, Any]:
    """The model's config as JSON, with empty paths in place of files of this machine."""
    return {**checkpoint.meta["config"]["model"], **dict.fromkeys(config_of(checkpoint).path_fields, "")}


def special_ids(checkpoint: Snapshot, tokenizer: Tokenizer) -> dict[str, Any]:
    """The config's ids of special tokens: those of the chat template's tokenizer, and where the model ends a text."""
    ids: dict[str, Any] = {"begin_of_document_id": bod_id(tokenizer)}
    chat = chat_of(tokenizer)
    if isinstance(tokenizer, HuggingFaceTokenizer) and chat is not None:
        named = {name: tokenizer.added_ids[token] for name, token in chat.special_tokens.items()}
        ids |= {f"{name}_id": named[name] for name in PARTS if name in named}
    ends = eos_ids(checkpoint, tokenizer)
    if ends:
        ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return ids


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that AutoTokenizer loads, and our own, by which `pipelines.prepare` gives the ids of the training.

    Raises UserError for a kind of tokenizer that has no counterpart there.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        exported: Any = pieces_tokenizer(tokenizer, folder)
    else:
        exported = fast_tokenizer(tokenizer)
    exported.save_pretrained(folder)
    keep_tokenizer(tokenizer, folder / TOKENIZER_FOLDER)


def pieces_tokenizer(tokenizer: SentencePieceTokenizer, folder: Path) -> ThroughlineTokenizer:
    """transformers' form of a SentencePiece tokenizer; the model that it reads is written into the folder."""
    for name, data in tokenizer.files().items():
        (folder / name).write_bytes(data)
    options: dict[str, Any] = {"auto_map": {"AutoTokenizer": [f"{TOKENIZER}.ThroughlineTokenizer", None]}}
    if tokenizer.cuts:
        cuts = tokenizer.cuts
        options |= {"piece_characters": cuts.characters, "piece_end": cuts.pattern, "piece_skip": cuts.skip}
        options |= {"piece_fallback": cuts.fallback, "piece_fallback_characters": cuts.fallback_characters}
    return ThroughlineTokenizer(str(folder / "tokenizer.model"), padding_side="left", **options)


def fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """transformers' form of any other tokenizer. Raises UserError as `save_tokenizer` does."""
    chat = chat_of(tokenizer)
    rust = rust_tokenizer(tokenizer, chat)
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        # Names of special tokens in a text are ordinary text, as in the corpus. But a chat template writes them.
        split_special_tokens=chat is None,
        chat_template=chat.template if chat else None,
        **special_tokens(rust.id_to_token(bod_id(tokenizer)) or BEGIN_OF_DOCUMENT, chat),
    )


def rust_tokenizer(tokenizer: Tokenizer, chat: Chat | None) -> RustTokenizer:
    """The tokenizer in the form of the library `tokenizers`. Raises UserError as `save_tokenizer` does."""
    if isinstance(tokenizer, GPT2Tokenizer):
        return byte_pair_tokenizer(tokenizer.vocab, tokenizer.merges)
    if isinstance(tokenizer, SymbolsTokenizer):
        return symbol_tokenizer(tokenizer.symbols)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        text = tokenizer.data.decode() if chat else tokenizer.library_file
        return tokenizer_of_file(text, hidden=chat is not None)
    kind = tokenizer.details()["kind"]
    if kind == "bytes":
        return byte_tokenizer()
    raise UserError(f"a tokenizer of the kind {kind!r} cannot be exported: AutoTokenizer has none like it")


def special_tokens(begin: str, chat: Chat | None) -> dict[str, Any]:
    """transformers' names for special tokens. Begin-of-document takes each role that a chat template's tokenizer leaves open, but
    not bos_token, which a template must not find."""
    if chat is None:
        return dict.fromkeys(PARTS, begin)
    return {"eos_token": begin, "pad_token": begin, **chat.special_tokens, "extra_special_tokens": [begin]}


def sample_texts(checkpoint: Snapshot, tokenizer: Tokenizer, store: str) -> list[str]:
    """Texts on which the tokenizers are compared: unusual ones, and the beginning of the corpus where the store is still there."""
    unusual = ["", " ".join(tokenizer.symbols)] if isinstance(tokenizer, SymbolsTokenizer) else [*SAMPLES]
    data = checkpoint.meta["config"]["data"]
    place = store or data["store"]
    if not place:  # of an exported folder
        return unusual
    try:
        split = SegmentStore.open(place, data["corpus"], "train")
    except StoreError:
        return unusual
    return [*unusual, tokenizer.decode(split.tokens(0, 0, min(CORPUS_TOKENS, int(split.lengths[0]))))]


def check_tokenizer(folder: Path, tokenizer: Tokenizer, samples: list[str]) -> None:
    """Raise ValueError unless the exported tokenizer gives our ids on these texts, and our text of these ids."""
    exported: Any = AutoTokenizer.from_pretrained(folder)
    chat = chat_of(tokenizer)
    if isinstance(tokenizer, HuggingFaceTokenizer) and chat is not None:
        check_special_names(exported, tokenizer, samples)
        # Its model finds names of special tokens in ordinary text.
        if tokenizer.library_file != tokenizer.data.decode():
            samples = [without(text, tokenizer.added_ids) for text in samples]
    first = [] if isinstance(tokenizer, SymbolsTokenizer) else [bod_id(tokenizer)]
    as_text = {} if chat is None else {"split_special_tokens": True}  # without a template names are text by default
    for text in samples:
        try:
            ours = tokenizer.encode(text).tolist()
        except TokenizerError:  # a vocabulary that does not cover the text
            continue
        theirs = exported(text, **as_text)["input_ids"]
        if theirs != [*first, *ours]:
            place = next(
                (i for i, (a, b) in enumerate(zip(theirs[len(first) :], ours, strict=False)) if a != b), len(ours)
            )
            raise UserError(
                f"the tokenizer {tokenizer.name} cannot be exported: AutoTokenizer gives other ids from token {place} of the "
                f"text that begins {text[:30]!r}"
            )
        if exported.decode(ours) != tokenizer.decode(np.asarray(ours, dtype=np.int64)):
            raise UserError(
                f"the tokenizer {tokenizer.name} cannot be exported: AutoTokenizer reads the ids of the text that begins "
                f"{text[:30]!r} as another text"
            )


def check_special_names(exported: Any, tokenizer: HuggingFaceTokenizer, samples: list[str]) -> None:
    """Raise UserError unless a chat template's text gives the ids of the tokenizer.json, special tokens among them."""
    original = RustTokenizer.from_str(tokenizer.data.decode())
    original.no_truncation()
    names = "".join(f"{name} a\n{name}{name}" for name in tokenizer.added_ids)
    for text in (*samples, names):
        if exported(text, add_special_tokens=False)["input_ids"] != original.encode(text, add_special_tokens=False).ids:
            raise UserError(
                f"the tokenizer {tokenizer.name} cannot be exported: for a chat AutoTokenizer gives other ids of the text that "
                f"begins {text[:30]!r} than its tokenizer.json"
            )


def without(text: str, names: Iterable[str]) -> str:
    """The text with every occurrence of these names left out."""
    for name in names:
        text = text.replace(name, "")
    return text


def check_model(folder: Path, model: RecurrentModel) -> None:
    """Raise ValueError unless the exported model has the same weights, and gives the same logits over two blocks."""
    exported: Any = AutoModelForCausalLM.from_pretrained(folder)
    ours = model.state_dict()
    theirs = exported.model.state_dict()
    same = ours.keys() == theirs.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)
    check_logits(folder, exported, model, 2, same)
