"""The files of a corpus: those that `--source` names, and what their names say.

for file in files_in(folder_of("text", source), recursive=True):         # name, bytes, place
    split_named(file.name), is_hidden(file.name)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence

from common.places import Listed, Place
from data_prep.documents import SPLITS, CorpusError


def place_of(name: str, source: str, needed: str = "folder: give --source FOLDER, or a file") -> Place:
    """The file or folder that `--source` names. Raises CorpusError if it is not given or does not exist."""
    if not source:
        raise CorpusError(f"corpus {name} needs a {needed}")
    root = Place.parse(source)
    if not root.exists():
        raise CorpusError(f"{root} is not there: give --source the folder or the file that holds the corpus {name}")
    return root


def folder_of(name: str, source: str) -> Place:
    """The folder or bucket that `--source` names. Raises CorpusError where it is not given or not a folder."""
    root = place_of(name, source, "folder: give --source FOLDER")
    if not root.is_dir():
        raise CorpusError(f"{root} is not a folder: give --source the folder that holds the corpus {name}")
    return root


def files_in(
    folder: Place,
    recursive: bool = False,
    links: bool = True,
    follow: bool = False,
    takes: Callable[[str], bool] | None = None,
) -> list[Listed]:
    """The ordinary files of a folder, in the order of their names, without pipes and devices.

    Args:
        links: follow links to files.
        follow: list the files in linked folders too.
        takes: whether the corpus reads a file of this name: others are left out, and links are checked (`check_links`), so that no
            text is lost unnoticed. By default all files are listed.
    """
    files = [file for file in folder.list(recursive, follow, broken=takes is not None) if not file.is_dir]
    if takes:
        check_links(files, takes)
        files = [file for file in files if takes(file.name)]
    if not folder.is_local:
        return files
    return [file for file in files if os.path.isfile(file.place.path) and (links or not is_link(file.place))]


def check_links(files: Sequence[Listed], takes: Callable[[str], bool]) -> None:
    """Raises CorpusError for a link that leads to nothing, and may be that of a text or of a folder with texts."""
    for file in files:
        may_be_read = (takes(file.name) or "." not in file.place.name) and not is_hidden(file.name)
        if may_be_read and is_link(file.place) and not os.path.exists(file.place.path):
            target = os.readlink(file.place.path)
            raise CorpusError(
                f"{file.place} is a link to {target}, which is not there: restore that, or remove the link"
            )


def shards(name: str, source: str, endings: tuple[str, ...], takes: Callable[[str], bool]) -> list[Listed]:
    """The files that `--source` names: one file, or all that the corpus ``takes`` in a folder and the folders in it that are not
    hidden. ``endings`` of them are for the message.

    Raises CorpusError where there is no such file, or one with a name that is not UTF-8.
    """
    root = place_of(name, source)
    if root.is_file():
        check_name(root.parent, root.name)
        return [Listed(root, root.name, root.size(), is_dir=False)]
    files = files_in(root, recursive=True, follow=True, takes=lambda file: takes(file) and not is_hidden(file))
    if not files:
        raise CorpusError(f"{root} holds no file that ends in {', '.join(endings)}: give --source another folder")
    for file in files:
        check_name(root, file.name)
    return files


_NAMED = {
    "training": "train",
    **dict.fromkeys(("valid", "val", "dev", "eval", "validate", "evaluation"), "validation"),
    "testing": "test",
}


def split_named(name: str) -> str | None:
    """The split in a file's name, such as `data/train-00000-of-00002.parquet`: the last if there are several, None without one."""
    words = [_NAMED.get(word, word) for word in re.split("[^a-z]+", name.lower())]
    named = [word for word in words if word in SPLITS]
    return named[-1] if named else None


def splits_named(names: Iterable[str], split_by: str) -> dict[str, str | None]:
    """The split that each name of a file, or of a hub's split, says; None for all where none says one, or with ``split_by`` "hash".

    Raises CorpusError where some names say a split and others do not: the others' documents would be spread over all splits.
    """
    named = {name: split_named(name) if split_by == "file" else None for name in names}
    if any(named.values()) and not all(named.values()):
        with_split = next(name for name, split in named.items() if split)
        without = next(name for name, split in named.items() if not split)
        raise CorpusError(
            f"{without} does not say its split in its name, and {with_split} does: rename or remove the "
            "former, or give --split-by hash"
        )
    return named


def split_folders(root: Place) -> dict[str, str]:
    """The folders that are named as splits, in any case, and the split of each: train, validation or test.

    Other names of splits (`_NAMED`) count only beside the folder of another split: alone, such a folder may hold anything. Empty
    where there is no folder of a split.
    """
    names = {**_NAMED, **{name: name for name in SPLITS}}
    folders = [listed.name for listed in root.list() if listed.is_dir]
    found = {name: names[name.lower()] for name in folders if name.lower() in names}
    return found if len(set(found.values())) > 1 or any(name.lower() in SPLITS for name in found) else {}


def is_link(place: Place) -> bool:
    return place.is_local and os.path.islink(place.path)


def is_hidden(name: str) -> bool:
    """Whether a file lies in a hidden folder or is hidden itself, `.ipynb_checkpoints/a.txt` or macOS's `._a.txt`."""
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def check_name(root: Place, name: str) -> None:
    """Raises CorpusError for a name that is not UTF-8: Python keeps such bytes as surrogates, and a manifest cannot."""
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise CorpusError(f"{root} holds a file whose name is not UTF-8, {name!a}: rename it")


def printable(name: str) -> str:
    """A file's name, or a member's, for a line of its own: bytes that are not UTF-8, and signs that cannot be seen, as U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)
