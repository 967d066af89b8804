"""JSON lines, plain or packed (gzip, bzip2, xz, zstd): one file, or a folder of shards such as a data set of a hub once downloaded.

A document is a line, its text in the field `--text-field`. Files whose names say train, validation or test (also valid, val,
dev, eval) are of that split. Where no name says a split, that of a document follows from a hash of its id, which is the file's
name and the line's number unless `--id-field` names one.

    python -m pipelines.prepare jsonl --source FOLDER --text-field text --tokenizer sentencepiece:32000

With `--thread-field` a document is a thread: the lines with the same value there, which follow each other, as comments that are
sorted by their discussion.

    python -m pipelines.prepare jsonl --source FOLDER --text-field body --thread-field link_id --tokenizer sentencepiece:32000

A packed file is decompressed from its beginning for every part that starts in it: shards below a few hundred MB are best.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain, groupby, islice
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from common.checks import check_options
from common.files import mark_of
from common.places import Listed
from data_prep.corpora.encodings import decode_utf8
from data_prep.corpora.files import shards, splits_named
from data_prep.corpora.left_out import LeftOut, skipped_of
from data_prep.corpora.spans import Window, line_spans, lines
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES, Forward, decompressed, reading
from data_prep.corpora.wikitext_lines import refuse_lines
from data_prep.documents import CorpusError, Document, Skipped, Source, split_of
from data_prep.sources import NumberedFile, NumberedSources, in_split_by_hash

ENDINGS = (".jsonl", ".ndjson", ".json")
PACKED = re.compile(r"\.(gz|bz2|xz|lzma|zst|zstd|lz4|zip|7z)$", re.IGNORECASE)
"""Endings of a packed shard. Some packings are not read: such a shard is refused by name, so that no text is lost unnoticed."""
FIRST = 1 << 16
"""The most bytes of a line that `refuse_lines` checks."""
Span = tuple[int, int, int]
"""Lines that follow each other: the number of the first, the offset there, and the bytes of all."""
ARRAY_HEAD_BYTES = 1 << 16
"""Bytes at a file's beginning in which its first non-blank character is looked for."""
NOT_DATA = frozenset({"config.json", "dataset_info.json", "dataset_infos.json", "state.json"})
KINDS: dict[type, str] = {str: "a string", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class JsonLines:
    """Files of JSON lines, one document per line."""

    name: ClassVar[str] = "jsonl"

    source: str = ""
    """Folder or bucket of .jsonl, .ndjson or .json files, also .gz, .bz2, .xz and .zst; or one such file."""
    text_field: str = "text"
    """Field that holds the text."""
    id_field: str = ""
    """Field that holds a document's id, a string or an integer; without it, the file and the line."""
    title_field: str = ""
    """Field that holds a document's title; without it, its id."""
    thread_field: str = ""
    """Field that holds the id of a line's thread, a string or an integer: the lines of a thread, which follow each other, are one
    document, of that id."""
    thread_separator: str = field(default="\n\n", metadata={"text": True})
    """Stands between the texts of a thread."""
    split_by: Literal["file", "hash"] = "file"
    """Take the split from the names of the files where they say one, or always from a hash of the id."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """Longer lines are left out, of their threads too, and longer threads; both are counted."""

    def __post_init__(self) -> None:
        check_options(self, max_document_bytes=1)
        if self.id_field and self.thread_field:
            raise CorpusError("a thread's id is its document's: give --id-field or --thread-field, not both")

    def options(self) -> dict[str, Any]:
        threads = {"thread_field": self.thread_field, "thread_separator": self.thread_separator}
        return {"text_field": self.text_field, **(threads if self.thread_field else {})}

    def takes(self, name: str) -> bool:
        """Whether a file of this name is read."""
        return PACKED.sub("", name.lower()).endswith(ENDINGS) and name.rpartition("/")[2] not in NOT_DATA

    def splits_by_hash(self) -> bool:
        return not any(splits_named((file.name for file in self._files()), self.split_by).values())

    def sources(self, split: str) -> Sequence[Source]:
        """One source for each document: a line, or the lines of a thread."""
        found: list[Source] = []
        numbered: list[NumberedFile] = []
        seen: set[str] = set()
        files = self._files()
        splits = splits_named((file.name for file in files), self.split_by)
        if not self.thread_field:
            self._refuse_lines(files[0])
        for file in files:
            named = splits[file.name]
            if named not in (None, split):
                continue
            if self.id_field or self.title_field or self.thread_field:
                found += self._listed(file, split, named is not None, seen)
            else:
                lines, left_out = self._numbered(file, split, named is not None)
                numbered.append(lines)
                found += left_out.sources(file.name, split)
        return NumberedSources.join(split, numbered, found) if numbered else found

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield the documents of these lines. Raises CorpusError, naming file and line, for a line that is no such document."""
        files = {file.name: file.place for file in self._files()} if sources else {}
        text_of = self._thread if self.thread_field else self._line
        for name, run in groupby(sources, key=_file_of):
            if not name:
                yield from filter(None, map(skipped_of, run))
                continue
            if name not in files:
                raise CorpusError(f"{name} went away while it was being prepared: start again")
            where = files[name].shown
            with reading(where), decompressed(files[name]) as stream:
                window = Window(stream)
                for source in run:
                    text = text_of(source, window, where)
                    if text is None:
                        yield Skipped(source.id, "without text")
                    else:
                        yield Document(source.id, source.title, text)
                    del text

    def _line(self, source: Source, window: Window, file: str) -> str | None:
        """The text of a document that is one line; None where it has none."""
        _, number, offset, size = source.place
        return self._text(window.read(offset, size), file, number, offset)

    def _thread(self, source: Source, window: Window, file: str) -> str | None:
        """The joined texts of a thread's lines; None if no line has a text."""
        texts = []
        for number, offset, size in _spans(source):
            for line in BytesIO(window.read(offset, size)):
                text = self._text(line, file, number, offset)
                if text is not None:
                    texts.append(text)
                number += 1
                offset += len(line)
        return self.thread_separator.join(texts) if texts else None

    def _text(self, line: bytes, file: str, number: int, offset: int) -> str | None:
        """The text of a line; None where it is null."""
        record = _record(line, file, number, offset)
        text = record.get(self.text_field)
        if isinstance(text, str):
            return _whole(text.removeprefix("\ufeff"), file, number)
        if self.text_field not in record:
            fields = ", ".join(map(str, list(record)[:20])) or "none"
            raise CorpusError(
                f"{file} line {number} has no field {self.text_field!r}: name one of its fields with --text-field ({fields})"
            )
        if text is not None:
            raise CorpusError(
                f"{file} line {number} has no text in field {self.text_field!r} but {kind_of(text)}: name another with --text-field"
            )
        return None

    def _files(self) -> list[Listed]:
        """The shards. Raises CorpusError where one is there twice, packed and unpacked, or in two packings."""
        files = shards(self.name, self.source, ENDINGS, self.takes)
        firsts: dict[str, str] = {}
        for file in files:
            first = firsts.setdefault(PACKED.sub("", file.name), file.name)
            if first != file.name:
                raise CorpusError(
                    f"{file.place} and {first} differ only in their packing: take one of them out, or rename it if it has "
                    "other documents"
                )
        return files

    def _refuse_lines(self, file: Listed) -> None:
        """Raises CorpusError if the first records are lines of WikiText, not documents."""
        where = file.place.shown
        with _opened(file) as stream:
            first = enumerate(islice(lines(stream, FIRST), 3), 1)
            records = [_record(line.data, where, i, line.offset) for i, line in first if line.data and not line.blank]
            refuse_lines((record.get(self.text_field) for record in records), where)

    def _numbered(self, file: Listed, split: str, named: bool) -> tuple[NumberedFile, LeftOut]:
        """The lines of a file, named by their numbers, and the lines that are left out."""
        found: list[np.ndarray] = [np.empty((3, 0), np.int64)]
        left_out = LeftOut()
        number = 1
        with _opened(file) as stream:
            for offsets, sizes, blank in line_spans(stream):
                numbers = np.arange(number, number + len(sizes))
                number += len(sizes)
                own = np.ones(len(sizes), bool) if named else in_split_by_hash(file.name, numbers, split)
                large = ~blank & (sizes > self.max_document_bytes)
                left_out.add("empty", int(np.count_nonzero(own & blank)))
                left_out.add("too large", int(np.count_nonzero(own & large)))
                found.append(np.stack([numbers, offsets, sizes])[:, own & ~blank & ~large])
        numbers, offsets, sizes = np.concatenate(found, axis=1)
        return NumberedFile(file.name, numbers, sizes, (numbers, offsets, sizes)), left_out

    def _listed(self, file: Listed, split: str, named: bool, seen: set[str]) -> Iterator[Source]:
        """The sources of a split in a file whose documents have names of their own: lines, or threads of lines.

        Args:
            named: whether the file's name says its split; else the split follows from a hash of the id.
            seen: ids of all documents so far; those of this file are added.
        """
        left_out = LeftOut()

        def kept() -> Iterator[Entry]:
            """The split's lines. Those that are left out are counted instead."""
            for entry in self._entries(file, seen):
                if not named and split_of(entry.id) != split:
                    continue
                if entry.reason:
                    left_out.add(entry.reason)
                else:
                    yield entry

        for id, entries in groupby(kept(), key=lambda entry: entry.id):
            title = ""
            spans: list[Span] = []
            end = -1  # of the last span: a line that begins there extends it
            for entry in entries:
                if not spans:
                    title = entry.title
                if entry.offset == end:
                    number, offset, size = spans.pop()
                    spans.append((number, offset, size + entry.size))
                else:
                    spans.append((entry.number, entry.offset, entry.size))
                end = entry.offset + entry.size
            total = sum(size for *_, size in spans)
            if total > self.max_document_bytes:
                left_out.add("too large")
            else:
                yield Source(id, title, split, total, (file.name, *chain(*spans)))
        yield from left_out.sources(file.name, split)

    def _entries(self, file: Listed, seen: set[str]) -> Iterator[Entry]:
        """The lines of a file with their names.

        Raises CorpusError for a line that is no such document, and for the id of an earlier line, unless that is the line before
        in the same thread.
        """
        before: str | None = None  # the id of the line before
        where = f"{file.place}"
        with _opened(file) as stream:
            for number, line in enumerate(lines(stream, self.max_document_bytes), 1):
                id = title = f"{file.name}:{number}"
                reason = ""
                if line.blank:
                    reason = "empty"
                elif line.data is None:
                    reason = "too large"
                else:
                    record = _record(line.data, where, number, line.offset)
                    id, title = self._names(record, id, where, number)
                    if id in seen and not (self.thread_field and id == before):
                        threads = "sort the lines by their threads, and keep each thread in one file"
                        remedy = threads if self.thread_field else "give another --id-field"
                        raise CorpusError(f"{where} line {number} has the id {id!r} of an earlier line: {remedy}")
                    seen.add(id)
                    before = id
                yield Entry(number, line.offset, line.size, id, title, reason)

    def _names(self, record: dict[str, Any], id: str, file: str, number: int) -> tuple[str, str]:
        """The id and title of a record. Without fields for them, the id is the given one, and the title is the id."""
        field = self.id_field or self.thread_field
        if field:
            value = record.get(field)
            if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
                option = "--id-field" if self.id_field else "--thread-field"
                what = "an empty string" if value == "" else "no string or integer"
                raise CorpusError(f"{file} line {number} has {what} in field {field!r}: give another {option}")
            id = _whole(str(value), file, number)
        title = record.get(self.title_field) if self.title_field else None
        return id, _whole(title, file, number) if isinstance(title, str) and title else id


class Entry(NamedTuple):
    """A line, or the reason why it is left out, while a file is listed."""

    number: int
    """Counted from 1."""
    offset: int
    """Bytes before it in the unpacked file."""
    size: int
    """Bytes, its line end included."""
    id: str
    title: str
    reason: str
    """Why it is left out: "empty" or "too large"; else ""."""


@contextmanager
def _opened(file: Listed) -> Iterator[Forward]:
    """The bytes of a file, decompressed. Raises CorpusError where it is damaged, in UTF-16, or one JSON list."""
    where = file.place.shown
    with reading(where), decompressed(file.place) as stream:
        head = stream.peek(ARRAY_HEAD_BYTES)
        mark_size, encoding = mark_of(head)
        if encoding != "UTF-8":
            raise CorpusError(f"{where} is {encoding}: iconv -f {encoding[:6]} -t UTF-8 FILE converts it to UTF-8")
        begin = head[mark_size:].lstrip()
        if begin.startswith(b"["):  # one JSON array, as the .json files of many data sets are
            number = head[: len(head) - len(begin)].count(b"\n") + 1
            raise CorpusError(
                f"{where} line {number} is a JSON list: every line is to be one object; jq -c '.[]' FILE writes the elements so"
            )
        yield stream


def _file_of(source: Source) -> str:
    """The name of the file that holds a document; "" for a source that stands for items that were left out."""
    return "" if skipped_of(source) else source.place[0]


def _spans(source: Source) -> list[Span]:
    """The spans of a thread, whose place is its file and then the numbers of each span."""
    numbers = source.place[1:]
    return [numbers[i : i + 3] for i in range(0, len(numbers), 3)]


def kind_of(value: object) -> str:
    """What a value of JSON is, for messages."""
    return KINDS.get(type(value), "a number")


def _record(data: bytes, file: str, number: int, offset: int) -> dict[str, Any]:
    """The object on a line of a file. Raises CorpusError where there is none."""
    text = decode_utf8(data, file, offset)
    try:
        record = _json_value(text)
    except RecursionError:
        raise CorpusError(f"{file} line {number} is nested too deeply: take it out") from None
    except ValueError as error:
        what = f"is not JSON ({error})"
        remedy = "correct it or take it out, since every line is to be one object"
        if isinstance(error, json.JSONDecodeError):
            what = f"is not JSON ({error.msg.removesuffix(' at')} at character {error.pos})"
            if text.endswith("\n") and error.pos == len(text):
                what = "ends within a JSON value"
                remedy = "every line is to be one object; jq -c . FILE writes each value on one line"
        raise CorpusError(f"{file} line {number} {what}: {remedy}") from None
    if not isinstance(record, dict):
        raise CorpusError(f"{file} line {number} is {kind_of(record)}: every line is to be one JSON object")
    return record


_DECODER = json.JSONDecoder()


def _json_value(text: str) -> Any:
    """The value that `json.loads` reads from a line, with infinity for an integer of more digits than Python reads.

    A line is mostly a value and a line end, for which `raw_decode` takes half the time of `json.loads`.
    """
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        pass
    else:
        if text[end:] in ("", "\n", "\r\n"):
            return value
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int | float:
    """Infinity where there are more digits than Python reads as an integer."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def _whole(text: str, file: str, number: int) -> str:
    """The text. Raises CorpusError if it has no UTF-8 form: JSON can hold half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CorpusError(
                f"{file} line {number} holds half a surrogate pair at character {error.start}: fix the line, or leave it out"
            ) from None
    return text
