"""One class for local files and folders, and for those at any URI that pyarrow.fs opens (s3://, gs://, abfs://, hdfs://, file://).

    place = Place.parse("s3://bucket/corpora?endpoint_override=127.0.0.1:9000&scheme=http")
    for file in (place / "train").list(recursive=True):
        with file.place.open_stream() as stream:
            stream.read(1 << 20)

Endpoint, region and credentials come from the URI's query and user part or, better, from the environment (AWS_ENDPOINT_URL,
AWS_REGION, AWS_ACCESS_KEY_ID…) as pyarrow describes. `shown` and `recorded` never hold a credential.

A written file appears whole or not at all, and a file that it replaces stays until then. It is written beside its place under a
temporary name, which ends in TEMPORARY, and then renamed; in an object store, copied. A killed process leaves the temporary file
behind: the command that finishes the folder removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import xxhash

from common.credentials import without_credentials
from common.errors import NO_ROOM
from common.uris import PlaceError, is_uri, open_root, parse_uri, uri_of

TEMPORARY = ".tmp"
"""Ending of a file that is being written."""
_STAGED = re.compile(rf"\.\d+\.[0-9a-f]{{8}}{re.escape(TEMPORARY)}$")
"""The suffix that `Place.staged` adds to a name."""
MAX_COPIED = {"s3": 5 << 30, "gcs": 1 << 62, "abfs": 256 << 20}
"""Object stores, which have no folders, and the largest object, in bytes, that each copies itself in one request."""


@dataclass(frozen=True)
class Listed:
    """An entry of a folder."""

    place: Place
    name: str
    """Path below the folder that was listed, with `/` between its parts."""
    bytes: int
    is_dir: bool


@dataclass(frozen=True, repr=False)
class Place:
    """A file or folder. Cheap, hashable, and the same in another process."""

    root: str
    """The URI up to its bucket or host, with its query: it opens the file system. Empty for the local file system."""
    path: str
    """Absolute path in the file system."""

    @staticmethod
    def parse(text: str | Path | Place) -> Place:
        """A place from a path or URI. Raises PlaceError for a URI that nothing here opens; looks at no file."""
        if isinstance(text, Place):
            return text
        text = str(text)
        if not is_uri(text):
            try:
                path = Path(text).expanduser().absolute()
            except RuntimeError:
                raise PlaceError(
                    f"{text} begins in a home folder that is not known here: write the whole path"
                ) from None
            # The folder above a link is not the path's own: the file system resolves it.
            return Place("", os.path.realpath(path) if ".." in path.parts else str(path))
        return Place(*parse_uri(text))

    def __truediv__(self, name: str) -> Place:
        return Place(self.root, f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.shown

    __repr__ = __str__

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def parent(self) -> Place:
        return Place(self.root, self.path.rstrip("/").rsplit("/", 1)[0] or "/")

    @property
    def is_local(self) -> bool:
        return not self.root

    @property
    def text(self) -> str:
        """`Place.parse(place.text) == place`. May hold credentials: for programs, never for print."""
        return self.path if self.is_local else uri_of(self.root, self.path)

    @property
    def recorded(self) -> str:
        """Like `text` without credentials: opens the same place where the environment has them."""
        return self.path if self.is_local else without_credentials(self.text)

    @property
    def shown(self) -> str:
        """For people: the path, or the URI without credentials and query."""
        return self.path if self.is_local else self.recorded.partition("?")[0]

    def exists(self) -> bool:
        return os.path.exists(self.path) if self.is_local else self._info().type != pyarrow.fs.FileType.NotFound

    def is_file(self) -> bool:
        return os.path.isfile(self.path) if self.is_local else self._kind() == pyarrow.fs.FileType.File

    def is_dir(self) -> bool:
        return os.path.isdir(self.path) if self.is_local else self._kind() == pyarrow.fs.FileType.Directory

    def is_writable(self) -> bool:
        """Whether this file or folder can be written or made, as far as a local system says so beforehand."""
        if not self.is_local:
            return True
        path = Path(self.path)
        while not path.exists():
            path = path.parent
        made = path != Path(self.path)
        return os.access(path, os.W_OK, effective_ids=True) and (path.is_dir() or not made)

    def size(self) -> int:
        """Bytes of a file. Raises FileNotFoundError."""
        if self.is_local:
            return os.path.getsize(self.path)
        info = self._info()
        if info.type != pyarrow.fs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.shown)
        return info.size

    def changed(self) -> int:
        """Time of a local file's last change, in nanoseconds since the epoch; 0 for any other file, compared by size alone."""
        return os.stat(self.path).st_mtime_ns if self.is_local else 0

    def list(self, recursive: bool = False, follow: bool = False, broken: bool = False) -> list[Listed]:
        """Files and folders below this one, sorted by name; nothing where it does not exist.

        Args:
            recursive: list the contents of its folders too, at any depth.
            follow: enter folders through links too, but never a folder within itself.
            broken: list links that lead to nothing too, as files without bytes.
        """
        if self.is_local:
            found = list(_scan(self.path, recursive, follow, broken))
        else:
            selector = pyarrow.fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
            start = len(self.path.rstrip("/")) + 1 if self.path != "/" else 0
            found = [
                Listed(Place(self.root, info.path), info.path[start:], info.size or 0, not info.is_file)
                for info in self._ask(selector)
            ]
        return sorted(found, key=lambda listed: listed.name)

    def open_stream(self) -> pa.NativeFile:
        """The file's bytes, as they are, from its beginning. Raises FileNotFoundError."""
        with self._named():
            if self.is_local:
                return pa.OSFile(os.fsencode(self.path), "rb")
            return self.filesystem.open_input_stream(self.path, compression=None)

    def open_random(self) -> pa.NativeFile:
        """The file for reading at any place: memory-mapped where it is local. Raises FileNotFoundError."""
        with self._named():
            if self.is_local:
                return pa.memory_map(os.fsencode(self.path))
            return self.filesystem.open_input_file(self.path)

    def read_bytes(self) -> bytes:
        with self._named(), self.open_stream() as stream:
            return stream.read()

    def xxh3(self) -> str:
        """xxh3-64 (hex) of the file's bytes, which are read in small pieces. Raises FileNotFoundError."""
        digest = xxhash.xxh3_64()
        with self._named(), self.open_stream() as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
        return digest.hexdigest()

    def staged(self) -> Place:
        """The temporary place to write this file to, beside it, until `commit` gives it its name."""
        return Place(self.root, f"{self.path}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY}")

    def commit(self, staged: Place) -> None:
        """Make a finished staged file durable and give it this name. A reader finds either the old file or the whole new one.

        Raises FileNotFoundError where the staged file is gone.
        """
        if self.is_local:
            with self._naming_what_cannot_be_written():
                sync(staged.path)
                folder = os.open(os.path.dirname(self.path), os.O_RDONLY)
                try:
                    os.replace(staged.path, self.path)
                    os.fsync(folder)  # by its descriptor: a process that finds the file may rename the folder
                finally:
                    os.close(folder)
        elif not self._is_object:
            self.filesystem.move(staged.path, self.path)
        else:
            with staged._named():
                if staged.size() <= MAX_COPIED[self.filesystem.type_name]:
                    self.filesystem.copy_file(staged.path, self.path)
                else:  # too large for the server to copy: send it again
                    with staged.open_stream() as source, self.open_output() as stream:
                        shutil.copyfileobj(source, stream, 4 << 20)
            with contextlib.suppress(OSError):  # the file is committed, even if the staged one stays
                self.filesystem.delete_file(staged.path)

    @contextmanager
    def open_output(self) -> Iterator[pa.NativeFile]:
        """A stream to a new file, at a name that is free. If the block or its end raises, no file is left."""
        with self._naming_what_cannot_be_written():
            if self.is_local:
                stream = pa.OSFile(os.fsencode(self.path), "wb")
            else:
                stream = self.filesystem.open_output_stream(self.path, compression=None)
            try:
                with stream:
                    yield stream
            except BaseException:  # pyarrow cannot abort an upload: it has completed, so the object is deleted
                with contextlib.suppress(OSError):
                    self.delete()
                raise

    @contextmanager
    def writing(self) -> Iterator[pa.NativeFile]:
        """A stream to a file that gets its name, and replaces an older file of that name, when the block ends.

        If the block raises, the new file is removed and the older one stays.
        """
        staged = self.staged()
        try:
            with staged.open_output() as stream:
                yield stream
            self.commit(staged)
        except BaseException:
            with contextlib.suppress(OSError):
                staged.delete()
            raise

    def write_atomically(self, data: bytes) -> None:
        """Write a small file such that it is either there, whole and on the disk, or not there at all."""
        with self.writing() as stream:
            stream.write(data)

    def make_folder(self) -> None:
        """Make the folder and those above it. An object store has no folders and needs none."""
        if self.is_local:
            os.makedirs(self.path, exist_ok=True)
        elif not self._is_object:
            self.filesystem.create_dir(self.path, recursive=True)

    def delete(self) -> None:
        """Remove a file, or a folder and all that is in it; nothing happens where there is none."""
        if self.is_local:
            if os.path.isdir(self.path) and not os.path.islink(self.path):
                shutil.rmtree(self.path, ignore_errors=True)
            elif os.path.lexists(self.path):  # a read-only disk refuses even if nothing is there
                Path(self.path).unlink(missing_ok=True)
            return
        kind = self._info().type
        with contextlib.suppress(FileNotFoundError):  # another machine has just removed it
            if kind == pyarrow.fs.FileType.Directory:
                self.filesystem.delete_dir(self.path)
            elif kind != pyarrow.fs.FileType.NotFound:
                self.filesystem.delete_file(self.path)

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        """The file system that `path` is in."""
        return pyarrow.fs.LocalFileSystem() if self.is_local else open_root(self.root)[0]

    @property
    def _is_object(self) -> bool:
        return not self.is_local and self.filesystem.type_name in MAX_COPIED

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raise Python's own error, with its fields, for a file that is missing or may not be read, for a folder, and for a file in
        the place of a folder. The file may also go while it is read.

        Raises PlaceError for an object whose name pyarrow lists and cannot open: one with two slashes in a row.
        """
        try:
            yield
        except pa.ArrowInvalid as error:
            raise PlaceError(f"{self.shown} cannot be opened ({without_credentials(str(error))}): rename it") from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) or (error.errno is None and not self.exists()):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.shown) from None
            if error.errno is None and self.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.shown) from None
            if isinstance(error, PermissionError | NotADirectoryError):
                number = error.errno or errno.EACCES
                raise OSError(number, os.strerror(number), self.shown) from None
            raise

    def _kind(self) -> pyarrow.fs.FileType:
        """File, folder or nothing. An object of 0 bytes whose name is also a folder's, as some programs write it, is a folder."""
        info = self._info()
        empty = info.type == pyarrow.fs.FileType.File and info.size == 0 and self._is_object
        return pyarrow.fs.FileType.Directory if empty and self.list() else info.type

    @contextmanager
    def _naming_what_cannot_be_written(self) -> Iterator[None]:
        """Add this file's name to the error of a full disk, of one where it may not be written, or of a folder that is gone:
        pyarrow's message has only the reason, twice, or a temporary name.
        """
        try:
            yield
        except OSError as error:
            refused = isinstance(error, PermissionError | FileNotFoundError) or error.errno in NO_ROOM
            named = str(error.filename or "")  # staged, or another file that was read meanwhile
            if not self.is_local or not refused or error.errno is None or (named and not _STAGED.search(named)):
                raise
            raise OSError(error.errno, os.strerror(error.errno), _STAGED.sub("", self.path)) from None

    def _info(self) -> pyarrow.fs.FileInfo:
        return self._ask(self.path)

    def _ask(self, what: Any) -> Any:
        """`get_file_info` of a path or a selector; what a file system in Python raises, as that of hf://, is a ConnectionError."""
        try:
            return self.filesystem.get_file_info(what)
        except (OSError, pa.ArrowException):
            raise
        except Exception as error:
            reason = str(error).split("\n")[0]
            raise ConnectionError(f"{self.shown} cannot be reached: {reason}") from error


def staged_for(name: str) -> str:
    """The final name of a staged file; empty for a file that is not staged."""
    found = _STAGED.search(name)
    return name[: found.start()] if found else ""


def remove_temporary(folder: Place) -> None:
    """Remove the temporary files that killed processes have left in a folder."""
    for file in folder.list():
        if not file.is_dir and staged_for(file.name):
            file.place.delete()


def sync(path: str | Path) -> None:
    """Make a local file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _scan(folder: str, recursive: bool, follow: bool, broken: bool) -> Iterator[Listed]:
    waiting: list[tuple[str, str, tuple[str, ...]]] = [(folder, "", ())]
    while waiting:
        current, prefix, above = waiting.pop()
        inside = (*above, os.path.realpath(current))
        try:
            entries = os.scandir(current)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                try:
                    is_dir = entry.is_dir()
                    size = entry.stat().st_size
                except OSError as error:
                    # A link to nothing, to itself or into a closed folder, or a file that has just gone.
                    if isinstance(error, PermissionError) and not entry.is_symlink():
                        raise  # the folder may be listed and not searched: its files would be lost without a word
                    if not (broken and entry.is_symlink()):
                        continue
                    is_dir = False
                    size = 0
                yield Listed(Place("", entry.path), prefix + entry.name, 0 if is_dir else size, is_dir)
                if recursive and is_dir and (not entry.is_symlink() or (follow and not _is_in(inside, entry.path))):
                    waiting.append((entry.path, f"{prefix}{entry.name}/", inside))


def _is_in(folders: tuple[str, ...], link: str) -> bool:
    """Whether a link leads to one of these folders, or to a folder that contains one."""
    target = os.path.join(os.path.realpath(link), "")
    return any(os.path.join(folder, "").startswith(target) for folder in folders)
