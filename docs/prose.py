"""Checks the English of the tree: Markdown, notebooks, docstrings, comments and messages.

    python docs/prose.py

Prints `file:line: rule: sentence` for each violation, and exits with 1 if there is one. It skips code blocks, inline code,
quotations (`>`), the changelog, results and the data of releases.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROSE = {".md", ".ipynb", ".py", ".toml", ".yaml", ".yml"}
EXCLUDED = re.compile(
    r"\.(?!github/)|(CHANGELOG|RESULTS)\.md$|(results|runs|build|dist|mlruns)(/|$)|tests/(releases/v|test_prose\.py)"
)
PLAIN = re.compile(r"(README|docs/(index|installation|start-[\w-]+))\.md$")
"""The pages whose sentences are short."""
MAX_WORDS = 30
RULES = {
    'no sentence begins with "Of"': re.compile(r"(^\W*|: )Of\s"),
    'write "report" or "log"': re.compile(r"\b(told|said) of\b", re.IGNORECASE),
    'write "fix"': re.compile(r"\bmend(s|ed|ing)?\b", re.IGNORECASE),
    'write "resume" or "continue"': re.compile(r"\b(go|goes|went|gone|going) on\b", re.IGNORECASE),
}

SUSPECT = re.compile(
    r"\b(?-i:Of)\b|\bmend|\b((told|said)[\s#\"'rf]+of|(go|goes|went|gone|going)[\s#\"'rf]+on)\b",
    re.IGNORECASE,
)
"""Matches in every text that can break a rule other than on length: most files need not be parsed."""

Block = tuple[int, str]
"""The line where a paragraph, a comment or a string begins, and its text."""

SENTENCE = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)[)\"'*”]*\s+(?=[^a-z])|\n\s*\n")
ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
HEADING = re.compile(r"#+\s+")
FENCE = re.compile(r"\s*(```|~~~)")
LINK = re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])")


def violations(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, rule and sentence of each violation in a file. `path` is relative to the root: it says how to read the text."""
    if not SUSPECT.search(text) and not PLAIN.search(path):
        return
    for line, block in blocks(path, text):
        for start, sentence in sentences(block):
            for rule, pattern in RULES.items():
                if pattern.search(sentence):
                    yield line + start, rule, sentence
            words = len(sentence.split())
            if PLAIN.search(path) and words > MAX_WORDS:
                yield line + start, f"{words} words, at most {MAX_WORDS}", sentence


def blocks(path: str, text: str) -> Iterator[Block]:
    """The pieces of a file that hold prose."""
    match Path(path).suffix:
        case ".md":
            yield from markdown_blocks(text)
        case ".ipynb":
            yield from notebook_blocks(text)
        case ".py":
            yield from python_blocks(text)
        case _:
            yield from comment_blocks(text)


def sentences(block: str) -> Iterator[tuple[int, str]]:
    """Each sentence on one line, with the number of lines before it in the block."""
    start = 0
    for end in [*SENTENCE.finditer(block), None]:
        piece = block[start : end.start() if end else len(block)]
        if piece.strip():
            before = start + len(piece) - len(piece.lstrip())
            yield block.count("\n", 0, before), " ".join(piece.split())
        start = end.end() if end else start


def markdown_blocks(text: str) -> Iterator[Block]:
    """Paragraphs, headings, items of lists and cells of tables; inline code counts as one word, a link as its text."""
    fenced = False
    first = 0
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        fence = FENCE.match(line)
        indented_code = line.startswith("    ") and not lines and not ITEM.match(line)
        table = line.lstrip().startswith("|")
        aside = bool(fence or fenced or indented_code or line.startswith((">", "<!--")))
        if lines and (aside or table or not line.strip() or ITEM.match(line) or HEADING.match(line)):
            yield first, plain("\n".join(lines))
            lines = []
        if fence:
            fenced = not fenced
        elif table and not aside:
            yield from ((number, plain(cell)) for cell in line.split("|"))
        elif line.strip() and not aside:
            first = first if lines else number
            lines.append(ITEM.sub("", line) if not lines else line)


def plain(markdown: str) -> str:
    return LINK.sub(r"\1", re.sub(r"`[^`]*`", "`code`", markdown))


def notebook_blocks(text: str) -> Iterator[Block]:
    """A cell's number stands for its line."""
    for number, cell in enumerate(json.loads(text)["cells"], start=1):
        source = "".join(cell["source"])
        read = markdown_blocks if cell["cell_type"] == "markdown" else comment_blocks
        yield from ((number, block) for _, block in read(source))


def python_blocks(text: str) -> Iterator[Block]:
    """Docstrings, comments and every other string; a value inside an f-string counts as one word."""
    yield from comment_blocks(text)
    tree = ast.parse(text)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values),
            )


def comment_blocks(text: str) -> Iterator[Block]:
    """Comments after `#`; those on lines that follow each other are one text."""
    first = 0
    lines: list[str] = []
    for number, comment in comments(text):
        if lines and number != first + len(lines):
            yield first, "\n".join(lines)
            lines = []
        first = first if lines else number
        lines.append(comment.lstrip("#! "))
    yield first, "\n".join(lines)


def comments(text: str) -> Iterator[Block]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, IndentationError):
        return


def files() -> Iterator[Path]:
    for top in sorted(ROOT.iterdir()):
        if EXCLUDED.match(f"{top.name}/"):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = path.relative_to(ROOT).as_posix()
            if (path.suffix in PROSE or path.name == "Makefile") and not EXCLUDED.match(name):
                yield path


def main() -> int:
    found = 0
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        for line, rule, sentence in violations(name, path.read_text("utf-8")):
            print(f"{name}:{line}: {rule}: {sentence}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
