"""Scan a corpus and write its segment files, as Ray tasks or in this process. The only module here that imports ray.

A task is a group of documents to scan, or one part to write. It commits its own part, so a killed preparation goes on at the
parts that were not committed; a task whose worker died is run again. What is written does not depend on who writes it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from data_prep.documents import Corpus, Scanned, Source
from data_prep.manifest import DocumentEntry, Manifest, part_from_dict, write_atomically
from data_prep.plan import SplitPlan, SplitScan, count_skipped, group_by_bytes, scan_group
from data_prep.segments import PartPlan, PartResult, ledger_path, write_part
from data_prep.tokenizers import Tokenizer, TokenizerError, load_tokenizer

T = TypeVar("T")
SCAN_BYTES = 16 << 20
"""Text that one task scans."""

Done = Callable[[int, int], None]
"""Told of finished work: documents, bytes of text."""


def run_tasks(
    function: Callable[..., T], calls: Sequence[tuple[Any, ...]], num_workers: int, done: Callable[[int, T], None]
):
    """Call `function(*call)` for every call, and `done(index, result)` as results come, in any order.

    Args:
        num_workers: 0 runs in this process. Otherwise Ray tasks, at most twice as many in flight; Ray must be initialised.

    Raises what a call raised; calls that are still running are given up.
    """
    if num_workers == 0:
        for i, call in enumerate(calls):
            done(i, function(*call))
        return
    import ray
    import ray.exceptions

    task = ray.remote(num_cpus=1, max_retries=3)(function)
    waiting = iter(enumerate(calls))
    running: dict[Any, int] = {}

    def submit() -> None:
        for i, call in waiting:
            running[task.remote(*call)] = i
            return

    for _ in range(2 * num_workers):
        submit()
    try:
        while running:
            ready, _ = ray.wait(list(running))
            for reference in ready:
                done(running.pop(reference), ray.get(reference))
                submit()
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, (ValueError, OSError)) else error from None
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def scan_split(corpus: Corpus, split: str, sources: Sequence[Source], num_workers: int, done: Done) -> SplitScan:
    """Read every document of a split once. Raises CorpusError for the first that cannot be read."""
    groups = [sources[run.start : run.stop] for run in group_by_bytes([s.bytes for s in sources], SCAN_BYTES)]
    scanned: list[list[Any]] = [[] for _ in groups]

    def store(i: int, result: list[Any]) -> None:
        scanned[i] = result
        done(len(groups[i]), sum(source.bytes for source in groups[i]))

    run_tasks(scan_group, [(corpus, group) for group in groups], num_workers, store)
    items = [item for group in scanned for item in group]
    return SplitScan(corpus, split, tuple(item for item in items if isinstance(item, Scanned)), count_skipped(items))


def prepare_split(folder: Path, plan: SplitPlan, tokenizer_folder: Path, num_workers: int, done: Done) -> Manifest:
    """Write the parts of a split that are not committed yet, then its manifest.

    Args:
        folder: of the split. Parts of another plan that stand there without a manifest are made anew.
        tokenizer_folder: where the plan's tokenizer was saved; tasks load it from there.
    """
    ledger = folder / "ledger"
    ledger.mkdir(parents=True, exist_ok=True)
    results = {part.index: result for part in plan.parts if (result := _committed(folder, part)) is not None}
    names = {plan.parts[index].name for index in results}
    # Temporary files go first: a Ray worker that outlived its killed preparation then cannot commit over ours.
    for path in [*folder.glob("*.tmp"), *ledger.glob("*.tmp"), *folder.glob("part-*.arrow")]:
        if path.name not in names:
            path.unlink(missing_ok=True)
    for index in results:
        done(len(plan.parts[index].documents), plan.parts[index].bytes)

    missing = [part for part in plan.parts if part.index not in results]
    key = (str(tokenizer_folder), plan.tokenizer.fingerprint)
    calls = [(folder, part, plan.scan.corpus, plan.scan.split, key, plan.segment_length) for part in missing]

    def store(i: int, result: PartResult) -> None:
        results[missing[i].index] = result
        done(len(missing[i].documents), missing[i].bytes)

    run_tasks(_write_part, calls, num_workers, store)
    manifest = plan.manifest([results[part.index] for part in plan.parts])
    write_atomically(folder / "manifest.json", manifest.to_json().encode())
    shutil.rmtree(ledger)
    return manifest


def discard_split(folder: Path) -> None:
    """Remove a finished split, its manifest first: whatever happens then, it is not taken for a finished one.

    An unfinished one stays, so that a killed preparation that overwrites goes on where it stopped.
    """
    if (folder / "manifest.json").exists():
        (folder / "manifest.json").unlink()
        shutil.rmtree(folder)


def _write_part(
    folder: Path, part: PartPlan, corpus: Corpus, split: str, tokenizer: tuple[str, str], segment_length: int
) -> PartResult:
    return write_part(folder, part, corpus, split, _tokenizer(*tokenizer), segment_length)


@lru_cache(maxsize=2)
def _tokenizer(folder: str, fingerprint: str) -> Tokenizer:
    """The tokenizer in a folder, loaded once for each process."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(f"the tokenizer in {folder} changed while the corpus was being prepared: start again")
    return tokenizer


def _committed(folder: Path, part: PartPlan) -> PartResult | None:
    """A part that an earlier preparation committed for the same plan, or None."""
    try:
        entry = json.loads(ledger_path(folder, part).read_bytes())
        result = PartResult(part_from_dict(entry["part"]), tuple(DocumentEntry(**d) for d in entry["documents"]))
        whole = os.path.getsize(folder / part.name) == result.part.bytes
        return result if whole and entry["fingerprint"] == part.fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
