"""Commits the parts of a split, and finishes it: the folder of a split from its first part to its manifest.

    clear_split(folder, plan)                                   # parts that another plan left here
    commit_part(folder, plan, index, *write_part(…))            # a name, then an entry in the ledger
    manifest = finish_split(folder, plan)                       # the table of the documents, then the manifest, last

A part counts once the ledger names it, and a split once it has a manifest: what a killed process left is removed or replaced.

A bucket has no lock that keeps out another machine. Two preparations of the same thing there commit the same bytes: the one
that ends second finds the other's manifest, and takes it. If they prepare different things, one of them fails.
"""

from __future__ import annotations

import contextlib
import re

from common.places import TEMPORARY, Place, remove_temporary, staged_for
from data_prep.document_table import write_table
from data_prep.manifest import Manifest, StoreError
from data_prep.parts import PartPlan, PartResult, part_name
from data_prep.plan import SplitPlan
from data_prep.tokenizers import TokenizerError

OWN_NAME = re.compile(r"ledger|part-\d{5,}\.arrow|documents\.arrow|manifest\.json")
"""Names in a split's folder."""


def check_own(folder: Place, overwrite: bool, empty: bool) -> None:
    """Raises StoreError if preparing would write into or remove a split's folder with a file that no preparation wrote.

    Nothing is written or removed where the split is finished, without ``overwrite``; or where the split is ``empty`` (it has no
    documents now) and no preparation has begun in its folder.
    """
    finished = (folder / "manifest.json").exists()
    if finished and not overwrite:
        return
    if empty and not finished and not (folder / "ledger").is_dir():
        return
    strange = next((file.name for file in folder.list() if not _is_own(file.name)), None)
    if strange is not None:
        raise StoreError(
            f"{folder} holds {strange}, which no preparation wrote: move it elsewhere, or give --store another place"
        )


def _is_own(name: str) -> bool:
    """Whether a file in a split's folder has a name that a preparation gives, staged or not."""
    return OWN_NAME.fullmatch(staged_for(name) or name) is not None


def clear_split(folder: Place, plan: SplitPlan) -> None:
    """Remove parts that the plan does not know from the folder of an unfinished split.

    Staged files in a bucket may belong to another machine that prepares the same; they go when the split is finished.
    """
    ledger = folder / "ledger"
    ledger.make_folder()
    parts = range(len(plan.parts))
    known = {part_name(i) for i in parts} | {_ledger(folder, i).name for i in parts}
    own_parts = [file for file in folder.list() if file.name.startswith("part-") and _is_own(file.name)]
    for file in own_parts + ledger.list():
        staged = file.name.endswith(TEMPORARY)
        removable = folder.is_local if staged else file.name not in known
        if removable:
            file.place.delete()


def commit_part(folder: Place, plan: SplitPlan, index: int, staged: Place, result: PartResult) -> None:
    """Give a written part its name, and then enter it in the ledger. Does nothing if another machine has finished the split by the
    same plan.
    """
    try:
        (folder / result.part.name).commit(staged)
        _ledger(folder, index).write_atomically(result.to_json())
    except FileNotFoundError:  # another machine has finished the split, and removed what was staged
        if _made_elsewhere(folder, plan) is None:
            raise


def is_committed(folder: Place, part: PartPlan) -> bool:
    """Whether an earlier preparation committed this part for the same plan, and every byte of it still is what it wrote."""
    try:
        entry = PartResult.from_json(_ledger(folder, part.index).read_bytes())
        return entry.fingerprint == part.fingerprint and (folder / part.name).xxh3() == entry.part.xxh3
    except (OSError, ValueError):
        return False


def finish_split(folder: Place, plan: SplitPlan) -> Manifest:
    """Write the table of the documents and the manifest of a split whose parts are all committed; then drop the ledger.

    Raises TokenizerError, and removes the split, where none of its documents has a token.
    """
    try:
        manifest = _manifest(folder, plan)
        if not manifest.totals.tokens:
            folder.delete()
            raise TokenizerError(
                f"tokenizer {plan.tokenizer.name} makes no token of any document of split {plan.scan.split}: choose another "
                "tokenizer, or leave the split out of --splits"
            )
        (folder / "manifest.json").write_atomically(manifest.to_json())
    except FileNotFoundError:
        manifest = _made_elsewhere(folder, plan)
        if manifest is None:
            raise
    tidy_split(folder)
    return manifest


def _manifest(folder: Place, plan: SplitPlan) -> Manifest:
    """Write the table of the documents; returns the manifest. Raises FileNotFoundError if the ledger is gone."""
    results = [_committed(folder, plan, i) for i in range(len(plan.parts))]
    table = write_table(folder, (plan.table(i, result) for i, result in enumerate(results)))
    return plan.manifest(results, table)


def _committed(folder: Place, plan: SplitPlan, index: int) -> PartResult:
    """The ledger entry of a part. Raises StoreError where it is damaged, or another plan has made it."""
    entry = _ledger(folder, index)
    try:
        result = PartResult.from_json(entry.read_bytes())
    except ValueError as error:
        raise StoreError(f"{entry} is damaged ({error}): run the same prepare command again") from None
    if result.fingerprint != plan.part_fingerprint(index):
        raise StoreError(f"another machine prepares something else in {folder}: stop it, and give --overwrite")
    return result


def _made_elsewhere(folder: Place, plan: SplitPlan) -> Manifest | None:
    """The manifest of a split that another machine has finished meanwhile by the same plan; else None."""
    place = folder / "manifest.json"
    with contextlib.suppress(FileNotFoundError):
        manifest = Manifest.from_json(place.read_bytes(), place.shown)
        return manifest if manifest.fingerprint == plan.fingerprint else None


def discard_split(folder: Place, unfinished: bool = False) -> None:
    """Remove a finished split, its manifest first: an interrupted removal then leaves no split that looks finished.

    Args:
        unfinished: also remove a split that was not finished. By default it stays: a preparation that was killed while it overwrote
            the split then resumes where it stopped.
    """
    if (folder / "manifest.json").exists():
        (folder / "manifest.json").delete()
    elif not (unfinished and (folder / "ledger").is_dir()):
        return
    folder.delete()


def tidy_split(folder: Place) -> None:
    """Remove the leftovers of writing from a finished split: the ledger, and the temporary files of killed processes."""
    remove_temporary(folder)
    (folder / "ledger").delete()


def _ledger(folder: Place, index: int) -> Place:
    return folder / "ledger" / f"part-{index:05d}.json"
