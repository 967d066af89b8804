r"""The encoding of a paper's TeX files: a byte-order mark, UTF-8, the option of the package inputenc, or Windows-1252.

decoded({"ms.tex": b"\\usepackage[latin2]{inputenc} \xb3\xf3d\xbc"})        # {"ms.tex": "… łódź"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from data_prep.corpora.encodings import as_utf8, decode
from data_prep.packing import packing_of

_DECLARED = re.compile(
    rb"(?:\A|[\r\n])[^%\r\n]*\\(?:(?:usepackage|RequirePackage)\s{0,9}\[(?P<options>[^\]]{1,200})\]\s{0,9}\{\s{0,9}input(?:enc|enx)\s{0,9}\}"
    rb"|inputencoding\s{0,9}\{(?P<name>[^}]{1,50})\})"
)
"""A line that loads inputenc with options, or switches the encoding, outside of a comment."""
_CODECS = {
    "ansinew": "cp1252", "applemac": "mac_roman", "ascii": "ascii", "macce": "mac_latin2", "maccyr": "mac_cyrillic",
    "koi8-r": "koi8_r", "koi8-u": "koi8_u", "koi8-ru": "koi8_u", "utf8": "utf-8", "utf8x": "utf-8",
    "latin1": "latin-1", "latin2": "iso8859-2", "latin3": "iso8859-3", "latin4": "iso8859-4", "latin5": "iso8859-9",
    "latin9": "iso8859-15", "latin10": "iso8859-16", "iso88595": "iso8859-5", "iso-8859-7": "iso8859-7", "8859-8": "iso8859-8",
    **{f"cp{page}": f"cp{page}" for page in (437, 850, 852, 855, 858, 862, 865, 866, 1250, 1251, 1252, 1253, 1255, 1256, 1257)},
}  # fmt: skip
"""The encodings of inputenc, by Python's names."""
_CONTROLS = bytes(byte for byte in range(1, 32) if byte not in b"\t\n\v\f\r\x1a\x1b")
MAX_CONTROLS = 0.01
"""The largest share of control characters in a text."""


def is_binary(data: bytes) -> bool:
    """Whether the bytes of a file are no text: packed, with a NUL, or with many control characters."""
    if b"\0" in data or packing_of(data[:512]):
        return True
    return len(data) - len(data.translate(None, _CONTROLS)) > MAX_CONTROLS * len(data)


def text_bytes(data: bytes) -> bytes | None:
    """The bytes of a file of text, in UTF-8 where a byte-order mark says UTF-16 or UTF-32; None for what is no text."""
    try:
        data = as_utf8(data)
    except UnicodeDecodeError:
        return None
    return None if is_binary(data) else data


def decoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """The texts of a paper's files. The declaration of one file holds for those without one.

    A file that is valid UTF-8 is read as UTF-8, whatever is declared: text in another encoding hardly ever is.
    """
    texts = {name: decode(data, "utf-8") for name, data in files.items()}
    if None in texts.values():
        declared = {name: _declared(data) for name, data in files.items()}
        common = next((codec for codec in declared.values() if codec), "ascii")
        for name, text in texts.items():
            for codec in (declared[name] or common, "cp1252"):
                text = decode(files[name], codec) if text is None else text
            texts[name] = text
    return {name: files[name].decode("latin-1") if text is None else text for name, text in texts.items()}


def _declared(data: bytes) -> str:
    """The codec that a file declares first; "" where it declares none that is known."""
    match = _DECLARED.search(data)
    if match is None:
        return ""
    names = (match["options"] or match["name"]).decode("latin-1").lower().split(",")
    known = [_CODECS[name.strip()] for name in names if name.strip() in _CODECS]
    return known[-1] if known else ""
