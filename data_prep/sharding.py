"""Scan a corpus and write its segment files, as Ray tasks or in this process. The only module here that imports ray.

A task is a group of documents to scan, or one part to write. Workers write parts under staged names; this process commits them:
it makes a part durable, gives it its name, and writes its ledger entry. So a worker that outlives a killed preparation can commit
nothing, and workers do not wait for the disk. A killed preparation resumes at the parts that were not committed; a task whose
worker died is run again. The bytes do not depend on who writes them.

A bucket has no lock that keeps out another machine. Two preparations of the same thing there commit the same bytes: the one
that ends second finds the other's manifest, and takes it. If they prepare different things, one of them fails.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from common.errors import is_users
from common.places import TEMPORARY, Place, remove_temporary, staged_for
from data_prep.document_table import write_table
from data_prep.documents import Corpus, Source
from data_prep.manifest import Manifest, PartEntry, StoreError
from data_prep.plan import SplitPlan
from data_prep.scanning import ScannedDocuments, ScannedGroup, SplitScan, scan_group
from data_prep.segments import PartPlan, PartResult, part_name, write_part
from data_prep.sources import group_by_bytes, sizes_of
from data_prep.tokenizers import Tokenizer, TokenizerError, load_tokenizer

K = TypeVar("K")
T = TypeVar("T")
SCAN_BYTES = 16 << 20
"""Text that one task scans; less where the corpus is small, so that each worker gets some tasks."""
SCAN_TASKS = 4
OWN_NAME = re.compile(r"ledger|part-\d{5,}\.arrow|documents\.arrow|manifest\.json")
"""Names in a split's folder."""

Done = Callable[[int, int], None]
"""Called as work finishes, with the number of documents and of bytes of text."""


def run_tasks(
    function: Callable[..., T],
    calls: Iterable[tuple[K, tuple[Any, ...]]],
    num_workers: int,
    done: Callable[[K, T], None],
) -> None:
    """Call `function(*arguments)` for every (key, arguments), and `done(key, result)` as results come, in any order.

    Args:
        calls: taken one by one as there is room for them.
        num_workers: 0 runs in this process. Otherwise Ray tasks, at most twice as many in flight; Ray must be initialised.

    Raises the error of a call that failed, and cancels the calls that are still running.
    """
    if num_workers == 0:
        for key, arguments in calls:
            done(key, function(*arguments))
        return
    import ray
    import ray.exceptions

    task = ray.remote(num_cpus=1, max_retries=3)(function)
    waiting = iter(calls)
    running: dict[Any, K] = {}

    def submit() -> None:
        for key, arguments in waiting:
            running[task.remote(*arguments)] = key
            return

    for _ in range(2 * num_workers):
        submit()
    try:
        while running:
            ready, _ = ray.wait(list(running))
            for reference in ready:
                submit()
                done(running.pop(reference), ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        raise error.cause if is_users(error.cause) else error from None
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def scan_splits(
    corpus: Corpus, sources: Mapping[str, Sequence[Source]], num_workers: int, done: Done
) -> dict[str, SplitScan]:
    """Read every document of some splits once. Raises CorpusError for one that cannot be read."""
    sizes = {split: sizes_of(listed) for split, listed in sources.items()}
    size = sum(int(listed.sum()) for listed in sizes.values())
    limit = max(1, min(SCAN_BYTES, size // (SCAN_TASKS * max(num_workers, 1))))
    runs = {split: group_by_bytes(listed, limit) for split, listed in sizes.items()}
    found: dict[tuple[str, int], ScannedGroup] = {}

    def collect(key: tuple[str, int], group: ScannedGroup) -> None:
        split, i = key
        found[key] = group
        run = runs[split][i]
        done(len(run), int(sizes[split][run.start : run.stop].sum()))

    calls = (
        ((split, i), (corpus, sources[split][run.start : run.stop]))
        for split in runs
        for i, run in enumerate(runs[split])
    )
    run_tasks(scan_group, calls, num_workers, collect)
    scans = {}
    for split, listed in sources.items():
        groups = [found[split, i] for i in range(len(runs[split]))]
        joined = ScannedGroup.join(groups, [len(run) for run in runs[split]])
        scans[split] = SplitScan(corpus, split, ScannedDocuments(listed, joined))
    return scans


def prepare_splits(folder: Place, plans: Mapping[str, SplitPlan], num_workers: int, done: Done) -> Iterator[Manifest]:
    """Write the parts of some splits that are not committed yet. Then yield each split's manifest, once it is written.

    Args:
        folder: the corpus's folder. Tasks load the plans' tokenizer from it, so it must be saved there. Parts that another plan
            left in an unfinished split are replaced.
        done: called for each part.
    """
    committed = {split: _clear(folder / split, len(plan.parts)) for split, plan in plans.items()}
    # The largest parts first: then the workers end at about the same time.
    parts = [(split, i) for split, plan in plans.items() for i in range(len(plan.parts))]
    parts.sort(key=lambda key: -plans[key[0]].bytes_of(key[1]))

    def call(split: str, i: int) -> tuple[Any, ...]:
        plan = plans[split]
        key = (folder / "tokenizer", plan.tokenizer.fingerprint)
        return folder / split, plan.part(i), i in committed[split], plan.scan.corpus, key, plan.segment_length

    with ThreadPoolExecutor(4, "commit") as committer:
        commits: list[Future[None]] = []
        for plan in plans.values():  # digests every document for the manifests, while the workers write
            committer.submit(lambda plan=plan: plan.fingerprint)

        def commit_written(key: tuple[str, int], written: tuple[Place, PartResult] | None) -> None:
            split, i = key
            if written:
                commits.append(committer.submit(_commit, folder / split, plans[split], i, *written))
            while commits and commits[0].done():
                commits.pop(0).result()
            done(len(plans[split].parts[i]), plans[split].bytes_of(i))

        run_tasks(_write_part, (((split, i), call(split, i)) for split, i in parts), num_workers, commit_written)
        for commit in commits:
            commit.result()
        yield from committer.map(lambda split: _finish(folder / split, plans[split]), plans)


def _commit(folder: Place, plan: SplitPlan, index: int, staged: Place, result: PartResult) -> None:
    """`commit_part`, which does nothing if another machine has finished the split by the same plan."""
    try:
        commit_part(folder, index, staged, result)
    except FileNotFoundError:  # another machine has finished the split, and removed what was staged
        if _made_elsewhere(folder, plan) is None:
            raise


def commit_part(folder: Place, index: int, staged: Place, result: PartResult) -> None:
    """Give a written part its name, and then enter it in the ledger."""
    (folder / result.part.name).commit(staged)
    _ledger(folder, index).write_atomically(result.to_json())


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


def _clear(folder: Place, parts: int) -> set[int]:
    """Remove parts that the plan does not know from the folder of an unfinished split. Returns the parts that the ledger names.

    Staged files in a bucket may belong to another machine that prepares the same; they go when the split is finished.
    """
    ledger = folder / "ledger"
    ledger.make_folder()
    entries = {_ledger(folder, i).name: i for i in range(parts)}
    known = {part_name(i) for i in range(parts)} | entries.keys()
    own_parts = [file for file in folder.list() if file.name.startswith("part-") and _is_own(file.name)]
    for file in own_parts + ledger.list():
        staged = file.name.endswith(TEMPORARY)
        removable = folder.is_local if staged else file.name not in known
        if removable:
            file.place.delete()
    return {entries[file.name] for file in ledger.list() if file.name in entries}


def _finish(folder: Place, plan: SplitPlan) -> Manifest:
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


def _made_elsewhere(folder: Place, plan: SplitPlan) -> Manifest | None:
    """The manifest of a split that another machine has finished meanwhile by the same plan; else None."""
    place = folder / "manifest.json"
    with contextlib.suppress(FileNotFoundError):
        manifest = Manifest.from_json(place.read_bytes(), place.shown)
        return manifest if manifest.fingerprint == plan.fingerprint else None


def _manifest(folder: Place, plan: SplitPlan) -> Manifest:
    """Write the table of the documents; returns the manifest. Raises FileNotFoundError if the ledger is gone."""
    parts: list[PartEntry] = []
    tokens = 0
    lossless = True
    labels = None

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal tokens, lossless, labels
        for i in range(len(plan.parts)):
            entry = _ledger(folder, i)
            try:
                result = PartResult.from_json(entry.read_bytes())
            except ValueError as error:
                raise StoreError(f"{entry} is damaged ({error}): run the same prepare command again") from None
            if result.fingerprint != plan.part_fingerprint(i):
                raise StoreError(f"another machine prepares something else in {folder}: stop it, and give --overwrite")
            parts.append(result.part)
            tokens += int(result.tokens.sum())
            lossless = lossless and result.lossless
            labels = labels if result.labels is None else (labels or 0) + result.labels
            yield plan.table(i, result)

    table = write_table(folder, documents())
    return plan.manifest(parts, table, tokens, lossless, labels)


def _write_part(
    folder: Place,
    part: PartPlan,
    known: bool,
    corpus: Corpus,
    tokenizer: tuple[Place, str],
    segment_length: int,
) -> tuple[Place, PartResult] | None:
    """Write a part under a staged name. Returns None if the ledger names the part and its bytes are intact."""
    if known and _is_committed(folder, part):
        return None
    return write_part(folder, part, corpus, _tokenizer(*tokenizer), segment_length)


@lru_cache(maxsize=1)
def _tokenizer(folder: Place, fingerprint: str) -> Tokenizer:
    """The tokenizer in a folder, loaded once for each process."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(f"the tokenizer in {folder} changed while the corpus was being prepared: start again")
    return tokenizer


def _is_committed(folder: Place, part: PartPlan) -> bool:
    """Whether an earlier preparation committed this part for the same plan, and every byte of it still is what it wrote."""
    try:
        entry = PartResult.from_json(_ledger(folder, part.index).read_bytes())
        return entry.fingerprint == part.fingerprint and (folder / part.name).xxh3() == entry.part.xxh3
    except (OSError, ValueError):
        return False
