"""Make the names of a tokenizer.json's special tokens ordinary text for its model, as they are for SentencePiece's.

    spec = without_special_names(json.loads(data))       # the same ids, but a text that holds "</s>" gets none of "</s>"

The library can be told not to look for special tokens in a text (`encode_special_tokens`). A model whose vocabulary has their names
finds them all the same: WordLevel where such a name is a word, Unigram wherever it stands, BPE where merges lead to it. So the
vocabulary gets them under names that no text holds; ids, scores and merges of all else stay as they are. A decoder writes the
names as they were.
"""

from __future__ import annotations

from typing import Any

from common.files import digest


def without_special_names(spec: dict[str, Any]) -> dict[str, Any]:
    """The file's content with special tokens under names that no text holds; unchanged if the model cannot find their names."""
    model = spec["model"]
    vocab = model.get("vocab") or {}
    known = [piece for piece, _ in vocab] if model.get("type") == "Unigram" else list(vocab)
    names = _findable_names(spec, known)
    suffix = f"\U0010ffff{digest(known)}"
    renamed = {name: name + suffix for name in known if name in names}
    if not renamed:
        return spec

    def new(name: Any) -> Any:
        return renamed.get(name, name)

    changed = {
        **model,
        "vocab": {new(name): index for name, index in vocab.items()} if isinstance(vocab, dict) else None,
    }
    if model.get("type") == "Unigram":
        changed["vocab"] = [[new(piece), score] for piece, score in vocab]
    if "unk_token" in model:
        changed["unk_token"] = new(model["unk_token"])
    if "merges" in model:
        changed["merges"] = [
            pair for pair in map(pair_of, model["merges"]) if not renamed.keys() & {*pair, "".join(pair)}
        ]
    added = [{**token, "content": new(token["content"])} for token in spec.get("added_tokens", ())]
    # Where a file has no decoder, tokens are written with blanks between them.
    written = spec.get("decoder") or {"type": "WordPiece", "prefix": suffix, "cleanup": False}
    as_before = {"type": "Replace", "pattern": {"String": suffix}, "content": ""}
    decoder = {"type": "Sequence", "decoders": [as_before, written]}
    # A post-processor would put special tokens around a text, and refers to them by name.
    return {**spec, "model": changed, "added_tokens": added, "decoder": decoder, "post_processor": None}


def _findable_names(spec: dict[str, Any], known: list[str]) -> set[str]:
    """The names of special tokens that the model may find in a text. ``known``: its vocabulary, by id."""
    model = spec["model"]
    kind = model.get("type")
    names = {token["content"] for token in spec.get("added_tokens", ()) if token["special"]}
    if kind == "Unigram":
        if model.get("unk_id") is not None:
            names.add(known[model["unk_id"]])
        return names
    if kind == "WordLevel":
        # A word that WordLevel does not know gets the id of its unknown token, whatever the word.
        return names - {model.get("unk_token")}
    if model.get("unk_token") is not None:
        names.add(model["unk_token"])
    if kind == "BPE":
        # BPE comes to a token as a character, as a whole word, or by a merge.
        merged = {"".join(pair_of(pair)) for pair in model["merges"]}
        whole = bool(model.get("ignore_merges"))
        names = {name for name in names if whole or len(name) == 1 or name in merged}
    return names


def pair_of(merge: str | list[str]) -> list[str]:
    """The two tokens of a merge, which older files write as one string."""
    return merge.split(" ") if isinstance(merge, str) else merge
