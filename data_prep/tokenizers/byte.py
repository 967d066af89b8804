"""UTF-8 bytes as ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from data_prep.manifest import digest


class BytesTokenizer:
    """Ids 0 to 255 are bytes, of text in UTF-8; 256 begins a document."""

    name = "bytes"
    vocab_size = 257
    takes_bytes = True
    fingerprint = digest({"kind": "bytes"})

    def encode(self, text: str | bytes) -> np.ndarray:
        data = text if isinstance(text, bytes) else text.encode()
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: np.ndarray | list[int]) -> str:
        ids = np.asarray(ids, dtype=np.int64)
        return ids[ids < 256].astype(np.uint8).tobytes().decode(errors="replace")

    def details(self) -> dict[str, Any]:
        return {"kind": "bytes"}

    def files(self) -> dict[str, bytes]:
        return {}
