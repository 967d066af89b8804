"""The registry of corpora: a name on the command line → the frozen dataclass that reads it.

A new corpus is one file in this folder with a class that follows `data_prep.documents.Corpus`, and one line here.
"""

from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.python_source import PythonSource
from data_prep.corpora.text import Text

CORPORA = {
    PythonSource.name: PythonSource,
    Pg19.name: Pg19,
    Text.name: Text,
}
