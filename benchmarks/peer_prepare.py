"""Another library's tokenization of a corpus in the layout of PG-19, with two processes; for benchmarks/prepare_throughput.py.

    python peer_prepare.py datatrove|datasets SOURCE TOKENIZER_JSON OUTPUT

Runs in the interpreter that has the library. The time is that of the library's own work, with two processes started by it. The
start of its pool counts; its imports do not, nor does writing the input in a form that it reads. datatrove's two files are as even
as the halves of the bare processes, and nothing is shuffled; `datasets` halves the documents by their number, as it does by itself.
Prints a line of JSON.
"""

import functools
import json
import sys
import time
from pathlib import Path


def texts(source):
    for path in sorted(Path(source).glob("*/*.txt")):
        yield path.stem, path.read_bytes().decode()


def halves(items):
    """Two lists of about the same size, the longest text first."""
    made = ([], [])
    sizes = [0, 0]
    for name, text in sorted(items, key=lambda item: -len(item[1])):
        least = sizes.index(min(sizes))
        made[least].append((name, text))
        sizes[least] += len(text)
    return made


@functools.cache
def loaded(tokenizer):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(tokenizer)


def datatrove(source, tokenizer, output):
    from datatrove.executor import LocalPipelineExecutor  # pyrefly: ignore
    from datatrove.pipeline.readers import JsonlReader  # pyrefly: ignore
    from datatrove.pipeline.tokens import DocumentTokenizer  # pyrefly: ignore

    (output / "input").mkdir(parents=True)
    for i, half in enumerate(halves(texts(source))):
        with open(output / "input" / f"{i}.jsonl", "w") as file:
            for name, text in half:
                file.write(json.dumps({"id": name, "text": text}) + "\n")
    writer = DocumentTokenizer(str(output / "tokens"), tokenizer, eos_token=None, shuffle_documents=False)
    executor = LocalPipelineExecutor(
        [JsonlReader(str(output / "input")), writer], tasks=2, workers=2, logging_dir=str(output / "logs")
    )
    start = time.perf_counter()
    executor.run()
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in (output / "tokens").glob("*.ds"))
    return seconds, size // writer.token_size


def datasets(source, tokenizer, output):
    import datasets

    datasets.disable_progress_bars()
    names, contents = zip(*texts(source), strict=True)
    made = datasets.Dataset.from_dict({"id": list(names), "text": list(contents)})
    made.save_to_disk(str(output / "input"))
    made = datasets.load_from_disk(str(output / "input"))

    def encode(batch):
        encoded = loaded(tokenizer).encode_batch(batch["text"], add_special_tokens=False)
        return {"tokens": [encoding.ids for encoding in encoded]}

    start = time.perf_counter()
    done = made.map(encode, batched=True, batch_size=8, num_proc=2, remove_columns=["text"])
    done.save_to_disk(str(output / "tokens"))
    seconds = time.perf_counter() - start
    return seconds, sum(map(len, done["tokens"]))


def main():
    name, source, tokenizer, output = sys.argv[1:]
    seconds, tokens = globals()[name](source, tokenizer, Path(output))
    print(json.dumps({"seconds": seconds, "tokens": tokens}))


if __name__ == "__main__":
    main()
