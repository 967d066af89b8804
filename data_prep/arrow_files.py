"""Arrow files written from arrays of NumPy, with checksums of their bytes.

sink = ChecksummedSink(stream)
with pa.ipc.new_file(sink, schema) as writer:
    writer.write_batch(pa.record_batch([arrow_array(values)], schema=schema))
sink.position, sink.whole.hexdigest()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import xxhash


def arrow_array(values: np.ndarray) -> pa.Array:
    """The same memory as an Arrow array. `pa.array` would import pandas in every worker, to check for its types."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


class ChecksummedSink:
    """A file for Arrow's writers that passes bytes on to a stream and computes their checksums.

    Attributes:
        position: bytes written.
        whole: checksum of all bytes.
        frame: checksum of the first `header` bytes and of all bytes written outside of sections.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile, header: int = 0) -> None:
        self._stream = stream
        self._header = header
        self.position = 0
        self.whole = xxhash.xxh3_64()
        self.frame = xxhash.xxh3_64()
        self._section = self.frame

    @contextmanager
    def section(self) -> Iterator[xxhash.xxh3_64]:
        """The checksum of the bytes that are written in this block."""
        self._section = xxhash.xxh3_64()
        yield self._section
        self._section = self.frame

    def write(self, data: pa.Buffer | bytes) -> None:
        (self.frame if self.position < self._header else self._section).update(data)
        self.whole.update(data)
        self._stream.write(data)
        self.position += len(memoryview(data))

    def close(self) -> None: ...
