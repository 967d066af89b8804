"""One contender of benchmarks/reading.py, in a process of its own, with the interpreter that has its library.

    python reading_contenders.py NAME FOLDER make        writes FOLDER/NAME from FOLDER/tokens.bin (uint16, rows of 4,096)
    python reading_contenders.py NAME FOLDER             answers each line on its input with a line of JSON

A line `read COUNT SEED` reads COUNT random rows in batches of 16 into int64 tensors [16, 4096], and answers seconds and a checksum;
`epoch COUNT SEED` opens the files anew and reads every row so many times, in random orders.
"""

import itertools
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch

ROW = 4096
BATCH = 16


def rows_of(folder):
    return np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r").reshape(-1, ROW)


def memmap(folder):
    """numpy's memmap, read row by row."""
    flat = np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r")

    def batch(rows):
        out = np.empty((len(rows), ROW), np.int64)
        for i, row in enumerate(rows):
            out[i] = flat[row * ROW : (row + 1) * ROW]
        return torch.from_numpy(out)

    return batch


def open_store(folder, trusting):
    from benchmarks.reading import Unverified
    from data_prep.store import SegmentStore

    return (Unverified if trusting else SegmentStore).open(folder / "store" / "pg19" / "train")


def throughline(folder, trusting=False):
    """Our segment store: the same rows, by document and offset."""
    store = open_store(folder, trusting)
    counts = store.lengths // ROW
    documents = np.repeat(np.arange(len(counts)), counts).tolist()
    starts = np.concatenate([np.arange(count) * ROW for count in counts]).tolist()

    def batch(rows):
        out = np.empty((len(rows), ROW), np.int64)
        for i, row in enumerate(rows):
            start = starts[row]
            out[i] = store.tokens(documents[row], start, start + ROW)
        return torch.from_numpy(out)

    return batch


def unverified(folder):
    return throughline(folder, trusting=True)


def lanes(folder, trusting=False):
    """The batches that training reads from our segment store: inputs, targets and marks of 16 lanes. ``rows`` is ignored."""
    from data_prep.lanes import TrainingLanes, read_batch

    store = open_store(folder, trusting)
    schedule = TrainingLanes(store.lengths, lanes=BATCH, segment_length=ROW, block=512, seed=0)
    steps = itertools.count()
    return lambda rows: torch.from_numpy(read_batch(store, schedule, next(steps), 0, BATCH).targets_BT)


def unverified_lanes(folder):
    return lanes(folder, trusting=True)


def make_datasets(folder):
    import datasets

    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("uint16"), length=ROW)})
    made = datasets.Dataset.from_dict({"tokens": rows_of(folder)}, features=features)
    made.save_to_disk(str(folder / "datasets"))


def datasets(folder):
    """Hugging Face datasets, a whole batch at a time: faster than row by row."""
    import datasets

    opened = datasets.load_from_disk(str(folder / "datasets")).with_format("numpy")
    return lambda rows: torch.from_numpy(np.asarray(opened[rows]["tokens"]).astype(np.int64))


def make_streaming(folder):
    from streaming import MDSWriter  # pyrefly: ignore

    with MDSWriter(out=str(folder / "streaming"), columns={"tokens": f"ndarray:uint16:{ROW}"}) as writer:
        for row in rows_of(folder):
            writer.write({"tokens": np.ascontiguousarray(row)})


def streaming(folder):
    """mosaicml-streaming: MDS shards of raw arrays."""
    from streaming import StreamingDataset  # pyrefly: ignore

    opened = StreamingDataset(local=str(folder / "streaming"), shuffle=False, batch_size=BATCH)

    def batch(rows):
        out = np.empty((len(rows), ROW), np.int64)
        for i, row in enumerate(rows):
            out[i] = opened[row]["tokens"]
        return torch.from_numpy(out)

    return batch


def one_document(path):
    yield torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int32))


def make_litdata(folder):
    import litdata  # pyrefly: ignore

    litdata.optimize(
        fn=one_document, inputs=[str(folder / "tokens.bin")], output_dir=str(folder / "litdata"), num_workers=1,
        chunk_size=ROW * 2048, item_loader=litdata.TokensLoader(block_size=ROW),
    )  # fmt: skip


def litdata(folder):
    """litdata's TokensLoader; int32, the smallest that it stores here."""
    import litdata  # pyrefly: ignore

    opened = litdata.StreamingDataset(
        str(folder / "litdata"), item_loader=litdata.TokensLoader(block_size=ROW), shuffle=False
    )

    def batch(rows):
        out = torch.empty((len(rows), ROW), dtype=torch.int64)
        for i, row in enumerate(rows):
            out[i] = opened[row]
        return out

    return batch


def main():
    name = sys.argv[1]
    folder = Path(sys.argv[2])
    torch.set_num_threads(1)
    if sys.argv[3:] == ["make"]:
        shutil.rmtree(folder / name, ignore_errors=True)
        globals()[f"make_{name}"](folder)
        return
    total = len(rows_of(folder))
    batch = globals()[name](folder)
    batch(list(range(BATCH)))
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        generator = np.random.default_rng(int(words[-1]))
        start = time.perf_counter()
        if words[0] == "epoch":
            order = np.concatenate([generator.permutation(total) for _ in range(int(words[1]))])
            start = time.perf_counter()
            batch = globals()[name](folder)
        else:
            order = generator.integers(total, size=int(words[1]))
            start = time.perf_counter()
        order = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH).tolist()
        checksum = 0
        for rows in order:
            checksum += int(batch(rows)[:, ::512].sum())
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "rows": len(order) * BATCH, "checksum": checksum}), flush=True)


if __name__ == "__main__":
    main()
