"""UTF-8 bytes as ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.files import digest


class BytesTokenizer:
    """Ids 0 to 255 are bytes, of text in UTF-8; 256 begins a document."""

    name = "bytes"
    vocab_size = 257
    takes_bytes = True
    fingerprint = digest({"kind": "bytes"})

    def encode(self, text: str | bytes) -> np.ndarray:
        return _ids(_data(text))

    def encode_batch(self, texts: Sequence[str | bytes]) -> tuple[np.ndarray, np.ndarray]:
        parts = [_data(text) for text in texts]
        return _ids(b"".join(parts)), np.array([len(part) for part in parts], np.int64)

    def decode(self, ids: np.ndarray | list[int]) -> str:
        ids = np.asarray(ids, dtype=np.int64)
        return ids[ids < 256].astype(np.uint8).tobytes().decode(errors="replace")

    def details(self) -> dict[str, Any]:
        return {"kind": "bytes"}

    def files(self) -> dict[str, bytes]:
        return {}


def _data(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _ids(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).astype(np.uint16)
