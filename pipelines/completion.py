"""Print a script that completes the commands, their presets and their options in a shell: bash, or zsh.

    mkdir -p ~/.local/share/bash-completion/completions
    throughline completion bash > ~/.local/share/bash-completion/completions/throughline      # then open a new shell
    throughline completion zsh > ~/.throughline.zsh        # and in ~/.zshrc: source ~/.throughline.zsh

The script holds the names that there are now, those of plug-ins too: make it again after an update. It takes seconds to make,
and nothing of ours runs when a word is completed.
"""

from __future__ import annotations

import importlib
import itertools
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import tyro

from data_prep.corpora import CORPORA
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.terminal.commands import CONSOLE, NAMES
from pipelines.terminal.options import options
from tune_spaces import SPACES

FIRST = {
    "prepare": CORPORA,
    "vocabulary": CORPORA,
    "train": PRESETS,
    "preflight": PRESETS,
    "run": PRESETS,
    "tune": SPACES,
    "completion": ("bash", "zsh"),
}
"""Completions of the first word by command. Other commands take files, which the shell completes."""
SCRIPT = """\
# Completes {console} in bash and zsh. Made by: {console} completion {shell}
{setup}_{console}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" first="" options=""
    COMPREPLY=()
    case "$COMP_CWORD:${{COMP_WORDS[1]}}" in
        1:*) first={names} ;;
{cases}
    esac
    if [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "--help $options" -- "$current"))
    elif ((COMP_CWORD <= 2)); then
        COMPREPLY=($(compgen -W "$first" -- "$current"))
    fi
}}
complete -o bashdefault -o default -F _{console} {console}"""
SETUP = {
    "bash": "",
    "zsh": "(($+functions[compdef])) || { autoload -Uz compinit && compinit }\nautoload -Uz bashcompinit && bashcompinit\n",
}
"""zsh takes bash's completions after this. A second `compinit` would forget what other scripts have registered since the first."""


@dataclass(frozen=True)
class CompletionConfig:
    """For which shell."""

    shell: tyro.conf.Positional[Literal["bash", "zsh"]]
    """Shell that reads the script."""


def main(argv: list[str]) -> None:
    """Print the completion script of a shell."""
    config = cli.parse(CompletionConfig, argv, __doc__)
    cases = "\n".join(
        f"        *:{name}) first={_words(FIRST.get(name, ()))} options={_words(all_options(name))} ;;"
        for name in NAMES
    )
    print(
        SCRIPT.format(console=CONSOLE, shell=config.shell, setup=SETUP[config.shell], names=_words(NAMES), cases=cases)
    )


def all_options(name: str) -> list[str]:
    """The options of a command, each once: where its first word chooses them, those of every first word."""
    command = importlib.import_module(f"pipelines.{name}").main
    if FIRST.get(name) is PRESETS and name != "run":
        by_model = {preset.model.name: preset_name for preset_name, preset in PRESETS.items()}
        first_words = [[preset_name] for preset_name in by_model.values()]
    elif FIRST.get(name) is CORPORA:
        first_words = [[corpus] for corpus in CORPORA]
    else:
        first_words = [[next(iter(SPACES))]] if name == "tune" else [[]]
    found = [options(lambda words, first=first: command([*first, *words])) for first in first_words]
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _words(names: Iterable[str]) -> str:
    return shlex.quote(" ".join(names))


if __name__ == "__main__":
    cli.run(main)
