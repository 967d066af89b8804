"""What a person can mend, told apart from what nobody is to blame for.

    raise UserError(f"{path} is not UTF-8 (byte {at}): convert it first")     # the value or file, the place, and the remedy

A command prints the sentence of a UserError and ends with status 2, and nothing that raised one is started again: it would only be
raised once more. Any other error is a fault of ours or of the machine's (a network that fails for once, a disk that is gone): it
shows its traceback, ends with status 1, and is tried again where that can help.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """What was given cannot be used: the message names it and says what to do."""


OF_A_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""What the system says of a path that was misspelt, or may not be used."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG)


def is_users(error: BaseException) -> bool:
    """Whether a person can mend what raised this, so that raising it again without that helps nobody."""
    if isinstance(error, OSError):
        return isinstance(error, (UserError, *OF_A_FILE)) or error.errno in NO_ROOM
    return isinstance(error, UserError)


@contextmanager
def given_by_user(*kinds: type[Exception]) -> Iterator[None]:
    """Where a person's values are handed to code that refuses them with errors of its own: these become UserError."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(str(error)) from error
