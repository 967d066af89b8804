"""WikiText as tables hold it: a row for each line of the release's files, without a document's boundaries.

refuse_lines(first_rows, "train.parquet")         # CorpusError where a row is a line and no document
"".join(map(line_of, rows))                       # the file of the release
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from data_prep.documents import CorpusError

_TITLE = re.compile(r"= [^=\s].* =")


def refuse_lines(rows: Iterable[object], where: str) -> None:
    """Raises CorpusError where a table's first rows are those of WikiText: a blank line, a title and another blank one."""
    texts = (row.decode(errors="replace") if isinstance(row, bytes) else row for row in islice(rows, 3))
    first = [text.strip() for text in texts if isinstance(text, str)]
    if len(first) == 3 and first[0] == first[2] == "" and _TITLE.fullmatch(first[1]):
        raise CorpusError(
            f"{where} has the lines of WikiText as rows, where a document is an article: give the folder of its Parquet files to "
            "the corpus wikitext"
        )


def line_of(row: str) -> str:
    """The line of the release for a row. A blank line is ` ` in the release, and an empty row in the data sets of hubs."""
    if not row.strip():
        return " \n"
    return row if row.endswith("\n") else f"{row}\n"
