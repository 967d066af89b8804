"""Train a small model on your own books, and see what its State is worth.

    python -m examples.own_books my_books       # a folder of .txt files (UTF-8), one book in each
    python -m examples.own_books                # no books at hand: the source code of Python's standard library

Some books are kept for validation and test: those in sub-folders of these names, or else some 7 % each, chosen by file name.
Run the same command again after an interruption: finished stages are skipped, and training resumes.

21 books of PG-19 (4.6 MB, one of them for test) took 6 minutes of processor time in one thread; beside other work on two cores
it was 15 minutes. The test book had 2.21 bits per byte, and 2.35 with the recurrent states cleared.
"""

import argparse
from pathlib import Path

from pipelines import evaluate, prepare, train
from pipelines.terminal import cli


def main(words: list[str]) -> None:
    """Prepare, train and evaluate: the commands of the same names, called from Python."""
    parser = argparse.ArgumentParser(epilog="Further options go to pipelines.train, such as --optim.lr 4e-3.")
    parser.add_argument("folder", nargs="?", help="folder of .txt files (default: the source code of Python)")
    parser.add_argument("--steps", default="1000", help="training steps of 4,096 bytes (default: 1000)")
    parser.add_argument("--root", default="runs", help="folder of everything that is written (default: runs)")
    args, options = parser.parse_known_args(words)
    corpus = "text" if args.folder else "python-source"
    run = Path(args.folder).resolve().name if args.folder else corpus
    store = f"{args.root}/{run}-store" if args.folder else f"{args.root}/store"  # each folder of books has its own

    # Text becomes tokens, here bytes, in a folder of checked files.
    source = ["--source", args.folder] if args.folder else []
    prepare.main([corpus, *source, "--tokenizer", "bytes", "--store", store])

    # demo-rec is a Block-Recurrent Transformer with 576,000 parameters. Its attention sees 64 bytes back; State carries the rest.
    data = ["--data.corpus", corpus, "--data.store", store, "--root", args.root, "--run", run]
    train.main(["demo-rec", *data, "--steps", args.steps, *options])

    # Score the test books twice: with State carried through a whole book, and with its recurrent states cleared.
    # Fewer bits per byte are better.
    evaluate.main([f"{args.root}/{run}", "--clear", "states"])
    print(f"Open the report: {args.root}/reports/index.html")


if __name__ == "__main__":
    cli.run(main)
