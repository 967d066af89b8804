"""The prompt format in an Instruct model's folder: the chat template, the special tokens, and the ids that end a reply.

    chat = read_chat(Path("smollm2"), {"<|im_end|>": 2})
    chat.template, chat.special_tokens["eos_token"], chat.eos_token_ids

A store keeps it beside the tokenizer, and an export passes it on. It does not change ids: in a document the names of special tokens
are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import parse_json, read_text
from common.model_folder import RELEASED, eos_token_ids, read_json

CHAT_FILE = "chat.json"
"""Name of the file in which a store keeps a `Chat`."""

TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Special tokens that transformers' tokenizer_config.json names."""


@dataclass(frozen=True)
class Chat:
    """The parts that transformers needs for a chat with the model."""

    template: str | dict[str, str]
    """One template in Jinja; or several, by name."""
    special_tokens: dict[str, str]
    """The name of each of TOKENS that the folder has."""
    eos_token_ids: tuple[int, ...]
    """Each of them ends a reply."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Chat:
        values = parse_json(data)
        return cls(values["template"], values["special_tokens"], tuple(values["eos_token_ids"]))


def read_chat(folder: Path, ids: Mapping[str, int]) -> Chat | None:
    """Reads the parts from transformers' files in a folder; None if they hold no chat template.

    Args:
        ids: ids of the tokenizer's special tokens, by name.

    Raises UserError where a file cannot be read.
    """
    template = read_template(folder)
    if not template:
        return None
    config = read_json(folder / "tokenizer_config.json")
    named = {**read_json(folder / "special_tokens_map.json"), **config}
    with _in_transformers_form(folder):
        tokens = {name: _content(named[name]) for name in TOKENS if named.get(name)}
    # transformers adds others, which no text has
    special = {name: token for name, token in tokens.items() if token in ids}
    ends = eos_token_ids(folder)
    if not ends and "eos_token" in special:
        ends = (ids[special["eos_token"]],)
    return Chat(template, special, ends)


def read_template(folder: Path) -> str | dict[str, str]:
    """The folder's chat template, or its templates by name; empty where it has none. Raises UserError as `read_chat` does."""
    templates: dict[str, str] = {}
    for file in (folder / "tokenizer_config.json", folder / "chat_template.json"):
        found = read_json(file).get("chat_template") or {}
        with _in_transformers_form(folder):
            named = {each["name"]: each["template"] for each in found} if isinstance(found, list) else found
            templates |= {"default": named} if isinstance(named, str) else named
            if not all(isinstance(each, str) for each in templates.values()):
                raise TypeError("a template is no text")
    for file in (folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))):
        if file.is_file():
            templates["default" if file.parent == folder else file.stem] = read_text(file, RELEASED)
    return templates["default"] if templates.keys() == {"default"} else templates


@contextmanager
def _in_transformers_form(folder: Path) -> Iterator[None]:
    """Name the folder where what is read of it has another form than transformers writes."""
    try:
        yield
    except (TypeError, KeyError) as error:
        raise UserError(
            f"{folder} has a chat template or special tokens of another form than transformers' ({error!r}): give it as it was "
            "released"
        ) from None


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]
