"""Keeps secrets out of what is printed and recorded: takes them out of the URIs in any text, a command line or an error's message.

    without_credentials("--store 's3://KEY:SECRET@bucket/corpora?region=eu&secret_key=abc'")     # --store 's3://bucket/corpora?region=eu'

The rest of a URI opens the same place where the environment has the credentials.
"""

from __future__ import annotations

import re
import urllib.parse

_USER = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]*)://([^\s/?#'"]*|[^\s/?#'"@:\[]*:(?!\d*([/?#'"]|$))\S*)@""")
"""A URI up to the end of its user part; also where a password has a slash or another sign that should have been written as %2F."""
_QUERY = re.compile(r"""\?([^\s?#'"]+)""")
_SECRET = re.compile(
    r"secret|password|passwd|pwd|credential|token|key|auth|signature|odbc_connect|^sig$|^sas$|^pass(phrase)?$",
    re.IGNORECASE,
)


def without_credentials(value: object) -> str:
    """The value as text, whose URIs have lost their user parts and those fields of their queries that are called like secrets."""
    return _QUERY.sub(_public_query, _USER.sub(_public_user, str(value)))


def _public_user(match: re.Match[str]) -> str:
    """Azure writes the container in the user part's place, which stays."""
    scheme = match[1]
    user = match[2].partition(":")[0]
    return f"{scheme}://{user}@" if user and scheme.startswith(("abfs", "wasb")) else f"{scheme}://"


def _public_query(match: re.Match[str]) -> str:
    fields = re.split("[&;]", match[1])
    public = [field for field in fields if not _SECRET.search(urllib.parse.unquote(field.partition("=")[0]))]
    return match[0] if len(public) == len(fields) else "?" + "&".join(public) if public else ""
