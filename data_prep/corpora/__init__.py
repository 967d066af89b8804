"""The registry of corpora: a name on the command line → the frozen dataclass that reads it.

A new corpus is one file in this folder with a class that follows `data_prep.documents.Corpus`, and one line here.
"""

from typing import Any

from common.errors import UserError, nearest
from data_prep.corpora.algorithm import Algorithm
from data_prep.corpora.arithmetic import Arithmetic
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.enwik8 import Enwik8
from data_prep.corpora.github import GitHub
from data_prep.corpora.hub import Hub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.mqar import Mqar
from data_prep.corpora.names import Names
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.permutation import Permutation
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.python_source import PythonSource
from data_prep.corpora.random_walk import RandomWalk
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText

CORPORA: dict[str, type[Any]] = {
    PythonSource.name: PythonSource,
    Pg19.name: Pg19,
    WikiText.name: WikiText,
    Arxiv.name: Arxiv,
    GitHub.name: GitHub,
    Enwik8.name: Enwik8,
    Text.name: Text,
    JsonLines.name: JsonLines,
    Parquet.name: Parquet,
    Hub.name: Hub,
    Names.name: Names,
    RandomWalk.name: RandomWalk,
    Algorithm.name: Algorithm,
    Mqar.name: Mqar,
    Permutation.name: Permutation,
    Arithmetic.name: Arithmetic,
}


def check_corpus(name: str) -> None:
    """Raises UserError for a name that is no corpus's."""
    if name not in CORPORA:
        raise UserError(f"there is no corpus {name!r}: {nearest(name, CORPORA)}")


CODE = {PythonSource.name, GitHub.name}
"""Corpora of program code. Its words, runs between blanks, are long and mean little: no metric is reported by word."""
