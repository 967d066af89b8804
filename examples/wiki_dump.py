"""Write the articles of a Wikipedia dump as JSON lines, which `pipelines.prepare jsonl` reads.

    python -m examples.wiki_dump simplewiki-latest-pages-articles.xml.bz2 wiki.jsonl
    python -m pipelines.prepare jsonl --source wiki.jsonl --title-field title --store runs/store

The texts keep their wiki mark-up. Redirects are left out, and pages that are no articles, such as talk and templates.
"""

import argparse
import bz2
import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

from common.errors import UserError
from common.places import Place
from pipelines.terminal import cli
from pipelines.terminal.commands import typed


def main(words: list[str]) -> None:
    """Read the dump page by page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dump", type=Path, help="…-pages-articles.xml, plain or .bz2")
    parser.add_argument("out", type=Path, help="the file of JSON lines to write")
    args = parser.parse_args(words)
    opened = bz2.open if args.dump.suffix == ".bz2" else open
    count = 0
    with opened(args.dump, "rb") as dump, Place.parse(args.out).writing() as out:
        elements = ElementTree.iterparse(dump, events=("start", "end"))
        try:
            _, root = next(elements)
            for event, page in elements:
                if event == "start" or not page.tag.endswith("}page"):
                    continue
                text = page.findtext("{*}revision/{*}text")
                if text and page.findtext("{*}ns", "0") == "0" and page.find("{*}redirect") is None:
                    article = {"title": page.findtext("{*}title"), "text": text}
                    out.write(json.dumps(article, ensure_ascii=False).encode() + b"\n")
                    count += 1
                root.clear()  # else all pages stay in memory
        except (ElementTree.ParseError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk; those of bz2 have no number
                raise
            raise UserError(f"{args.dump} is not the XML of a dump, or is cut off ({error}): fetch it again") from None
        if not count:
            raise UserError(f"{args.dump} holds no article: give a dump …-pages-articles.xml, plain or .bz2")
    print(f"{args.out}: {count:,} articles")
    print(f"Next: {typed('prepare')} jsonl --source {shlex.quote(cli.shown(args.out))} --title-field title")


if __name__ == "__main__":
    cli.run(main)
