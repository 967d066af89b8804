"""Removes secrets from the URIs in a text that is printed or recorded, such as a command line or an error message.

    without_credentials("--store 's3://KEY:SECRET@bucket/corpora?region=eu&secret_key=abc'")     # --store 's3://bucket/corpora?region=eu'

The remaining URI opens the same place if the environment has the credentials.
"""

from __future__ import annotations

import re
import urllib.parse

_USER = re.compile(r"""([A-Za-z][A-Za-z0-9+.-]{0,30})://([^\s/?#'"]*|[^\s/?#'"@:\[]*:(?!\d*([/?#'"]|$))\S{0,4096})@""")
"""A URI up to the end of its user part. It also matches a password with a slash, or another sign that should be written as %2F.

The scheme and such a password are bounded, else the time for a long word would grow with the square of its length."""
_QUERY = re.compile(r"""\?([^\s?#'"]+)""")
_SECRET = re.compile(
    r"secret|password|passwd|pwd|credential|token|key|auth|signature|odbc_connect|^sig$|^sas$|^pass(phrase)?$",
    re.IGNORECASE,
)


def without_credentials(value: object) -> str:
    """The value as text, without the user parts of its URIs and without query fields that are named like secrets."""
    return _QUERY.sub(_public_query, _USER.sub(_public_user, str(value)))


def _public_user(match: re.Match[str]) -> str:
    """The beginning of a URI without its user part. In Azure's URIs the container stands there, which stays."""
    scheme = match[1]
    user = match[2].partition(":")[0]
    return f"{scheme}://{user}@" if user and scheme.startswith(("abfs", "wasb")) else f"{scheme}://"


def _public_query(match: re.Match[str]) -> str:
    fields = re.split("[&;]", match[1])
    public = [field for field in fields if not _SECRET.search(urllib.parse.unquote(field.partition("=")[0]))]
    if len(public) == len(fields):
        return match[0]
    return "?" + "&".join(public) if public else ""
