"""Scan a corpus and write its segment files, as Ray tasks or in this process. The only module here that imports ray.

A task is a group of documents to scan, or one part to write. Workers write parts under staged names; this process commits them:
it makes a part durable, gives it its name, and writes its ledger entry (committing.py). So a worker that outlives a killed
preparation can commit nothing, and workers do not wait for the disk. A killed preparation resumes at the parts that were not
committed; a task whose worker died is run again. The bytes do not depend on who writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from common.errors import is_users
from common.places import Place
from data_prep import committing
from data_prep.documents import Corpus, Source
from data_prep.manifest import Manifest
from data_prep.parts import PartPlan, PartResult, write_part
from data_prep.plan import SplitPlan
from data_prep.scanning import ScannedDocuments, ScannedGroup, SplitScan, scan_group
from data_prep.sources import group_by_bytes, sizes_of
from data_prep.tokenizers import TOKENIZER_FOLDER, Tokenizer, TokenizerError, load_tokenizer

K = TypeVar("K")
T = TypeVar("T")
SCAN_BYTES = 16 << 20
"""Text that one task scans; less where the corpus is small, so that each worker gets some tasks."""
SCAN_TASKS = 4
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
    for split, plan in plans.items():
        committing.clear_split(folder / split, plan)
    # The largest parts first: then the workers end at about the same time.
    parts = [(split, i) for split, plan in plans.items() for i in range(len(plan.parts))]
    parts.sort(key=lambda key: -plans[key[0]].bytes_of(key[1]))

    def call(split: str, i: int) -> tuple[Any, ...]:
        plan = plans[split]
        key = (folder / TOKENIZER_FOLDER, plan.tokenizer.fingerprint)
        return folder / split, plan.part(i), key

    with ThreadPoolExecutor(4, "commit") as committer:
        commits: list[Future[None]] = []
        for plan in plans.values():  # digests every document for the manifests, while the workers write
            committer.submit(lambda plan=plan: plan.fingerprint)

        def commit_written(key: tuple[str, int], written: tuple[Place, PartResult] | None) -> None:
            split, i = key
            if written:
                commits.append(committer.submit(committing.commit_part, folder / split, plans[split], i, *written))
            while commits and commits[0].done():
                commits.pop(0).result()
            done(len(plans[split].parts[i]), plans[split].bytes_of(i))

        run_tasks(_write_part, (((split, i), call(split, i)) for split, i in parts), num_workers, commit_written)
        for commit in commits:
            commit.result()
        yield from committer.map(lambda split: committing.finish_split(folder / split, plans[split]), plans)


def _write_part(folder: Place, part: PartPlan, tokenizer: tuple[Place, str]) -> tuple[Place, PartResult] | None:
    """Write a part under a staged name. Returns None if the ledger names the part and its bytes are intact."""
    if committing.is_committed(folder, part):
        return None
    return write_part(folder, part, _tokenizer(*tokenizer))


@lru_cache(maxsize=1)
def _tokenizer(folder: Place, fingerprint: str) -> Tokenizer:
    """The tokenizer in a folder, loaded once for each process."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(f"the tokenizer in {folder} changed while the corpus was being prepared: start again")
    return tokenizer
