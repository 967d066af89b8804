"""docs/prose.py: each rule catches a sample and passes a good sentence, and the tree follows them all."""

from __future__ import annotations

import json

import pytest

from docs import prose

LONG = " ".join(["word"] * 31) + "."
NOTEBOOK = json.dumps({"cells": [{"cell_type": "markdown", "source": ["Good.\n", "\n", "It went on."]}]})


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("a.py", '"""Of a run."""\n', [(1, "Of a run.")]),
        ("a.py", '"""A run.\n\nIt ends. Of two, one\nstays.\n"""\n', [(3, "Of two, one stays.")]),
        ("a.py", 'x = 1  # it goes\n', []),
        ("a.py", "# A killed run goes\n# on when repeated.\n", [(1, "A killed run goes on when repeated.")]),
        ("a.py", 'raise ValueError(f"{x} is no file: "\n    f"mend {x}")\n', [(1, "… is no file: mend …")]),
        ("a.py", '"""Args:\n    done: Told of finished work.\n"""\n', [(1, "Args: done: Told of finished work.")]),
        ("a.md", "# Title\n\nGood. Nothing is said of it.\n", [(3, "Nothing is said of it.")]),
        ("a.md", "- one\n- Of two, one `goes on`.\n", [(2, "Of two, one `code`.")]),
        ("a.md", "| a | b |\n|---|---|\n| good | Of a document, its bytes |\n", [(3, "Of a document, its bytes")]),
        ("a.ipynb", NOTEBOOK, [(1, "It went on.")]),
        ("a.yaml", "key: of # Of a key\n", [(1, "Of a key")]),
        ("README.md", f"Short.\n\n{LONG}\n", [(3, LONG)]),
        ("docs/start-laptop.md", f"- item\n- {LONG}\n", [(2, LONG)]),
    ],
)  # fmt: skip
def test_a_violation_is_found_at_its_line(path: str, text: str, found: list[tuple[int, str]]) -> None:
    assert [(line, sentence) for line, _, sentence in prose.violations(path, text)] == found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", '"""The mean of a run. Most of it stays, I recommend it; ongoing work goes one way."""\n'),
        ("a.py", "mend = told_of = 1\n"),
        ("a.md", "    mend the code\n\n```\nOf a block\n```\n\n> Of a quotation that goes on\n"),
        ("a.md", LONG),
        ("README.md", f"[{' '.join(['word'] * 15)}.](Of.md) Word {' '.join(['word'] * 15)} `a b` c.\n"),
        ("README.md", f"| {'word ' * 20} | {'word ' * 20} |\n"),
    ],
)
def test_good_sentences_pass(path: str, text: str) -> None:
    assert list(prose.violations(path, text)) == []


def test_every_rule_has_a_sample() -> None:
    samples = {'no sentence begins with "Of"': "Of it.", 'write "report" or "log"': "It is told of."}
    samples |= {'write "fix"': "Mending it.", 'write "resume" or "continue"': "It has gone on."}
    assert {rule: next(prose.violations("a.md", text))[1] for rule, text in samples.items()} == {
        rule: rule for rule in prose.RULES
    }


def test_the_tree_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main() == 0, capsys.readouterr().out


def test_results_changelog_and_releases_are_not_checked() -> None:
    names = {path.relative_to(prose.ROOT).as_posix() for path in prose.files()}
    assert {"README.md", "examples/sweep.ipynb", "Makefile", ".github/pull_request_template.md"} <= names
    assert not names & {"CHANGELOG.md", "RESULTS.md"}
    assert not [name for name in names if name.startswith((".venv/", ".git/", "tests/releases/v", "results/"))]
