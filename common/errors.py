"""Separates the errors that a user can fix from all others.

    raise UserError(f"{path} is not UTF-8 (byte {at}): convert it first")     # the value or file, the place, and the remedy

A command prints the sentence of a UserError and ends with status 2. Nothing is retried: it would only raise the error once more.
Any other error is our fault or the machine's (a network failure, a lost disk): the command shows its traceback, ends with status
1, and retries where that can help.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from common.credentials import without_credentials


class UserError(ValueError):
    """Unusable input: the message names it and says what to do."""


OF_A_FILE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
"""The system's errors for a path that is misspelt, or may not be used."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG)
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of a file system without locks: Lustre that is mounted without `flock`, NFS 3 without lockd."""
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there, or choose another place, and repeat the command"),
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "ask its owner for access, or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file, so choose another path",
    errno.EISDIR: "name a file",
    errno.EEXIST: "move it away, or choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
}
REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET|EXPIRED_TOKEN|PERMISSION_DENIED"
)
"""pyarrow's messages, in an OSError without a number, for a bucket that is missing or credentials that do not open it."""


def is_users(error: BaseException) -> bool:
    """Whether a person has to fix the cause, so that a retry cannot help.

    A command asks this about the error that ended it. A run's worker is started again after every error but a UserError: a file
    that is missing on one machine for a moment may be there the next time.
    """
    if not isinstance(error, OSError):
        return isinstance(error, (UserError, MemoryError))
    refused = error.errno is None and REFUSED.search(str(error)) is not None
    return isinstance(error, (UserError, *OF_A_FILE)) or error.errno in NO_ROOM or refused


@contextmanager
def given_by_user(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into UserError: for code that refuses a user's values with errors of its own."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(str(error)) from error


def sentence(error: BaseException) -> str:
    """The message of an error on one line, without credentials; an OSError as "file: reason", with a remedy where one is known."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        remedy = REMEDIES.get(error.errno or 0)
        # The second name of a file is its new one.
        return f"{error.filename2 or error.filename}: {error.strerror}" + (f": {remedy}" if remedy else "")
    if isinstance(error, MemoryError):
        return f"not enough memory ({str(error) or 'on this machine'}): ask for fewer or smaller things at once"
    return without_credentials(" ".join(str(error).split())) or type(error).__name__


def first_cause(error: BaseException, most: int = 200) -> str:
    """An error as one line of at most ``most`` characters: "[Errno 111] Connection refused" instead of the four errors that wrap
    it. A longer line loses its middle, since the remedy often comes last.
    """
    first = error
    while True:
        shown_context = None if first.__suppress_context__ else first.__context__
        cause = first.__cause__ or shown_context
        if cause is None:
            break
        first = cause
    told = first if isinstance(first, OSError) else error
    line = without_credentials(" ".join(str(told).split()) or type(told).__name__)
    half = (most - 3) // 2
    return line if len(line) <= most else f"{line[:half]} … {line[-half:]}"


def nearest(name: str, known: Iterable[str], many: str = "--help lists them") -> str:
    """The end of an error message on an unknown name: the nearest of the known names that begin with it, or whose last part does
    (lr, of optim.lr), or else of all; then all, if they are few, else ``many``.
    """
    known = list(known)
    longer = [each for each in known if begins_with(each, name) or begins_with(last_part(each), name)]
    near = difflib.get_close_matches(name, longer or known, n=1, cutoff=0.0 if longer else 0.5)
    return f"did you mean {near[0]!r}? ({listed(known, many)})" if near else listed(known, many)


def last_part(name: str) -> str:
    """A field's or an option's name without its group: lr, of optim.lr and --optim.lr."""
    return name.lstrip("-").rpartition(".")[2]


def begins_with(known: str, name: str) -> bool:
    """Whether a known name is this one, or begins with it where it has three letters or more."""
    return known == name or (len(name) > 2 and known.startswith(name))


def listed(known: Iterable[str], many: str = "--help lists them") -> str:
    known = list(known)
    return f"known: {', '.join(known)}" if len(known) <= 30 else many
