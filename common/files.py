"""Small files that are written atomically and contain a checksum, and digests of values.

write_atomically(Path("run.json"), data)    # whole and on the disk, or not there at all
data = seal({"parts": [...]})               # JSON that begins with a checksum of itself
content = unseal(data)                      # ValueError where a byte of it changed
parse_json(path.read_bytes())               # ValueError where it is damaged, however
digest({"kind": "bytes"})                   # xxh3-128 of the canonical JSON
finite([1.0, math.nan])                     # [1.0, None], for JSON
"""

from __future__ import annotations

import codecs
import json
import math
import sys
from pathlib import Path
from typing import Any

import xxhash

from common.errors import UserError
from common.places import Place

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF32_LE: "UTF-32-LE",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32-BE",
    codecs.BOM_UTF16_LE: "UTF-16-LE",
    codecs.BOM_UTF16_BE: "UTF-16-BE",
}
"""The byte-order marks with which a file of text may begin, and the encodings that they stand for."""


def digest(value: Any) -> str:
    """xxh3-128 (hex) of the canonical JSON of a value."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


def finite(value: Any) -> Any:
    """The value, but None for each NaN and infinity in it, which JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def seal(content: dict[str, Any]) -> bytes:
    """JSON with one line per item of a list, whose first line is a checksum of all that follows."""
    lines = []
    for key, value in content.items():
        if isinstance(value, (list, tuple)):
            text = "[\n" + ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in value) + "\n ]"
        else:
            text = json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n ")
        lines.append(f" {json.dumps(key)}: {text}")
    body = (",\n".join(lines) + "\n}\n").encode()
    return _seal_of(body) + body


def unseal(data: bytes) -> dict[str, Any]:
    """The content of a sealed file. Raises ValueError if a byte of it changed; the message says so."""
    head, newline, body = data.partition(b",\n")
    if head + newline != _seal_of(body):
        raise ValueError("its checksum does not match")
    content = parse_json(data)
    del content["checksum"]
    return content


def _seal_of(body: bytes) -> bytes:
    return f'{{\n "checksum": "{xxhash.xxh3_128_hexdigest(body)}",\n'.encode()


def parse_json(data: bytes | str) -> Any:
    """The value of a text of JSON. Raises ValueError if the text is damaged, or nested too deeply to be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def mark_of(data: bytes) -> tuple[int, str]:
    """The length of the byte-order mark that a file begins with, and the encoding; 0 and UTF-8 where there is none."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return len(mark), encoding
    return 0, "UTF-8"


def read_text(file: Path, remedy: str) -> str:
    """The text of a file, or of the standard input for "-": UTF-8, unless its byte-order mark names another encoding. The mark is
    not part of the text. Raises UserError with this remedy if the bytes are not of this encoding.
    """
    from_stdin = file == Path("-")
    data = sys.stdin.buffer.read() if from_stdin else file.read_bytes()
    size, encoding = mark_of(data)
    try:
        return data[size:].decode(encoding)
    except UnicodeDecodeError as error:
        name = "the standard input" if from_stdin else file
        raise UserError(f"{name} is not {encoding} text (byte {size + error.start}): {remedy}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file such that it is either there, whole and on the disk, or not there at all."""
    Place.parse(path).write_atomically(data)
