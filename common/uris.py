"""Divides URIs of files and folders into a root and a path, opens the file system of a root, and refuses unusable URIs.

    root, path = parse_uri("s3://bucket/a%20b?region=eu-west-1")   # "s3://bucket?region=eu-west-1", "bucket/a b"
    open_root(root)[0].get_file_info(path)
    uri_of(root, path)                                             # the URI again

A root is a URI up to its bucket or host, with its query: it opens the file system. No message holds a credential.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from functools import lru_cache

import pyarrow as pa
import pyarrow.fs

from common.credentials import without_credentials
from common.errors import UserError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PASSING = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING)"
)
"""Errors on opening a bucket that may pass: opening asks the network for the bucket's region."""
_OF_BUCKETS = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})
"""Schemes of URIs that begin with a bucket or container."""


class PlaceError(UserError):
    """A URI that cannot be used: the message names it, without its credentials."""


def is_uri(text: str) -> bool:
    """Whether a text is a URI, and not a path."""
    return bool(_URI.match(text))


def is_local(text: str) -> bool:
    """Whether a path or URI names a file or folder of this machine. Uses no network."""
    return not is_uri(text) or text.startswith("file:")


def parse_uri(text: str) -> tuple[str, str]:
    """The root and the path of a URI; the root of a local file is empty, and its path absolute.

    Raises PlaceError for a URI that cannot be opened, that would lose a part, or whose secret would be shown. Reads no file.
    """
    try:
        uri = urllib.parse.urlsplit(text)
    except ValueError:  # its message may hold a key
        raise PlaceError(
            f"the URI {text.partition('://')[0]}://… has a bracket in its bucket or host: leave it out"
        ) from None
    if "#" in text or (uri.scheme == "file" and "?" in text):  # not shown: half of a secret may stand before it
        raise PlaceError(f"the URI {uri.scheme}://… would be cut short at a sign in it: write %23 for # and %3F for ?")
    if uri.scheme == "file":
        if uri.netloc not in ("", "localhost"):
            raise PlaceError(
                f"{text} names the machine {uri.netloc!r}, not a folder: write file:///whole/path, or the path alone"
            )
        return "", os.path.abspath(urllib.parse.unquote(uri.path))
    if re.search(r"""['"\s]""", uri.netloc):
        raise PlaceError(
            f"the URI {uri.scheme}://… has a quote or a blank in a key or password: write %27 for ', %22 for \" and %20 for a "
            "blank, or give it in the environment"
        )
    before, _, after = uri.netloc.rpartition("@")
    bucket = before if uri.scheme.startswith("abfs") and "@" in uri.netloc else after
    if uri.scheme in _OF_BUCKETS and not bucket:
        raise PlaceError(f"the URI {uri.scheme}://… names no bucket: write {uri.scheme}://bucket/folder")
    bare = text.partition("?")[0]
    if ":" in uri.netloc and "@" in uri.query and "@" not in uri.netloc:
        raise PlaceError(
            f"the URI {uri.scheme}://… has a question mark in a key or password: write %3F, or give it in the environment"
        )
    public = without_credentials(bare)
    if "@" not in uri.netloc and public != bare:
        raise PlaceError(f"{public} has a key or password with a slash in it: write %2F, or give it in the environment")
    root = f"{uri.scheme}://{uri.netloc}" + (f"?{uri.query}" if uri.query else "")
    bucket = open_root(root)[1]
    path = urllib.parse.unquote(uri.path).strip("/")
    return root, "/".join(part for part in (bucket, path) if part) or "/"


def uri_of(root: str, path: str) -> str:
    """The URI of a path in the file system of a root that is not empty. May hold credentials."""
    uri = urllib.parse.urlsplit(root)
    bucket = open_root(root)[1]
    path = path.removeprefix(bucket) if bucket else f"/{path.lstrip('/')}"
    return f"{uri.scheme}://{uri.netloc}{urllib.parse.quote(path)}" + (f"?{uri.query}" if uri.query else "")


@lru_cache(maxsize=64)
def open_root(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a root, opened once for each process, and the bucket or container with which its paths begin."""
    try:
        return pyarrow.fs.FileSystem.from_uri(root)
    except (pa.ArrowException, OSError, ImportError) as error:
        passing = isinstance(error, OSError) and _PASSING.search(str(error))
        shown = without_credentials(root).partition("?")[0]
        reason = without_credentials(str(error).split("\n")[0].replace(root, shown))
        raise (ConnectionError if passing else PlaceError)(
            f"{shown} cannot be opened ({reason}): give a folder, or a URI that pyarrow.fs knows, such as s3://bucket/folder"
        ) from None
