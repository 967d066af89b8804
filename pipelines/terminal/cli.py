"""The command line of every entry script: tyro's options and help, and one plain sentence for whatever a user got wrong.

    def main(argv: list[str]) -> None:
        config = cli.parse(Config, argv, __doc__)      # or cli.parse_preset(PRESETS, argv, __doc__)
        ...

    if __name__ == "__main__":
        cli.run(main)

For a user's error (UserError, or a file that is missing or may not be read), `run` prints `error: <sentence>` on stderr and exits
with status 2, so messages must name the value or the file, and the remedy. THROUGHLINE_DEBUG=1 shows the traceback instead.
Any other error shows its traceback and exits with 1.

Relative paths begin in the working directory; on the nodes of a cluster in THROUGHLINE_HOME, the folder that all of them share.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tyro
import xxhash
from tyro import MISSING_NONPROP

# Private in tyro, and better than reading the boxes that it prints: the version is pinned, and the tests have each kind.
from tyro._errors import (
    BadValue,
    InstantiationFailure,
    InvalidChoice,
    MissingArgs,
    ParseErrorEvent,
    UnrecognizedArgs,
    on_parse_error,
)

from common.credentials import without_credentials
from common.errors import UserError, is_users, listed, nearest, sentence
from common.start_up import end
from pipelines.terminal import home, plugins
from pipelines.terminal.commands import program, typed
from pipelines.terminal.options import check_once, check_values, not_of_type, unknown, without_value
from pipelines.terminal.output import discard, listing

T = TypeVar("T")

UNREAD_STATUS = 128 + signal.SIGPIPE
"""Exit status if the reader of a command's output has gone, as a shell reports it for SIGPIPE."""
INTERRUPTED_STATUS = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as a shell reports it."""


def run(main: Callable[[list[str]], int | None]) -> None:
    """Call `main` with the words of the command line and exit with its status; 2 and one sentence for a user's error."""
    _prepare_streams()
    try:
        home.enter()
        module = home.stale_module()
        if module is not None:
            print(
                f"warning: this script differs from {module}, but its imports come from there: run `ray rsync-up cluster.yaml` "
                "to copy your changes to the cluster",
                file=sys.stderr,
            )
        plugins.load()
        status = main(sys.argv[1:])
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _unread():
            sys.exit(UNREAD_STATUS)
        if os.environ.get("THROUGHLINE_DEBUG", "0") not in ("", "0"):
            raise
        refused = _refused_output("\n") if isinstance(error, OSError) and error.filename is None else ""
        status = 2 if refused or is_users(error) else 1
        message = f"error: {refused or sentence(error)}" if status == 2 else traceback.format_exc().rstrip()
        with contextlib.suppress(OSError):  # a full disk
            print(without_credentials(message), file=sys.stderr)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich exits so at a closed pipe
            sys.exit(UNREAD_STATUS)
        raise
    except KeyboardInterrupt:
        print("stopped; the same command continues from what is saved, or begins anew", file=sys.stderr)
        status = INTERRUPTED_STATUS
    if not status:
        refused = _refused_output()
        if refused:
            print(f"error: {refused}", file=sys.stderr)
            status = 2
    _unread()
    end(status)


def _prepare_streams() -> None:
    """Make stdout and stderr ones that take any text, also where they were closed by whoever began this process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w")  # noqa: SIM115
            setattr(sys, name, stream)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another


def _refused_output(further: str = "") -> str:
    """Flush stdout, with ``further`` text. Returns why it cannot be written, as on a full disk; empty if it can be. After a failure
    further output is discarded.
    """
    try:
        print(end=further, flush=True)
    except BrokenPipeError:
        return ""
    except OSError as error:
        discard()
        return f"standard output cannot be written: {error.strerror}"
    except ValueError:  # it is closed
        return ""
    return ""


def _unread() -> bool:
    """Whether the reader of stdout has gone. If so, further output is discarded."""
    gone = False
    try:
        sys.stdout.flush()
        look = select.poll()
        look.register(sys.stdout.fileno(), 0)
        gone = any(event & select.POLLERR for _, event in look.poll(0))
    except BrokenPipeError:
        gone = True
    except (OSError, ValueError):  # stdout is no file
        return False
    if gone:
        discard()
    return gone


@contextmanager
def as_a_warning(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Run a block that may fail without ending the command: a warning reports a ValueError, an OSError or one of ``kinds``."""
    try:
        yield
    except (ValueError, OSError, *kinds) as error:
        print(f"warning: {what}: {sentence(error)}", file=sys.stderr, flush=True)


def parse(
    config: type[T],
    argv: Sequence[str],
    description: str | None,
    *,
    default: Any = MISSING_NONPROP,
    prog: str = "",
    unknown_option: Callable[..., str] = unknown,
) -> T:
    """Read a config from the words of the command line.

    Args:
        config: a dataclass; fields marked `tyro.conf.Positional` are positional.
        description: a module's docstring, of which `--help` has the first paragraph.
        default: an instance whose fields are the defaults.
        prog: what `--help` calls the program; by default `python -m` and the running module.
        unknown_option: makes the message for words that are no option, as `unknown` does.

    Raises:
        UserError: an unknown option (naming the nearest), a value that does not parse, or a missing argument.
        SystemExit: after `--help`.
    """

    about = (description or "").split("\n\n")[0]

    def read(words: Sequence[str]) -> T:
        return tyro.cli(config, prog=prog or program(), description=about, args=words, default=default)

    if any(word in ("-h", "--help") for word in argv):
        read(["--help"])
    with on_parse_error(partial(_refuse, partial(unknown_option, read=read), partial(without_value, argv, read))):
        parsed = read(argv)
    check_values(parsed)
    check_once(parsed, argv)
    return parsed


def _refuse(
    unknown_option: Callable[[Sequence[str]], str], without_value: Callable[[str, object], str], event: ParseErrorEvent
) -> None:
    """Raise tyro's complaint as a UserError of one sentence, in place of the box that tyro would print before it exits."""
    if isinstance(event, UnrecognizedArgs):
        raise UserError(unknown_option(event.tokens))
    if isinstance(event, MissingArgs) and event.unrecognized_tokens:  # the missing option may be there, misspelt
        raise UserError(unknown_option(event.unrecognized_tokens))
    if isinstance(event, InstantiationFailure):
        if event.argument is None:  # a config's own ValueError: a sentence of ours
            raise UserError(event.message)
        raise UserError(not_of_type(event.argument.display_name(), event.message))
    elif isinstance(event, InvalidChoice):
        option = event.argument.display_name()
        problem = f"invalid choice {event.value!r} for argument '{option}'. Expected one of {event.choices}"
    elif isinstance(event, BadValue):
        raise UserError(without_value(event.argument.display_name(), event.argument.lowered.nargs))
    elif isinstance(event, MissingArgs):
        names = [missing.arg.display_name() for missing in event.missing_arguments]
        problem = f"missing: {', '.join(name if name.startswith('-') else name.upper() for name in names)}"
    else:
        return
    raise UserError(f"{problem}; --help lists the options")


def parse_preset(
    presets: Mapping[str, T],
    argv: Sequence[str],
    description: str | None,
    *,
    noun: str = "preset",
    names: Callable[[], str] | None = None,
    search: Callable[[Sequence[str]], str] | None = None,
) -> T:
    """Read `PRESET [--dotted.field value]...`: the named value, with some of its fields replaced.

    Args:
        noun: the kind of thing that is named; the option that searches it is called after it, as `--presets`.
        names: how `--help` lists them; by default their names alone.
        search: the list for `--presets WORD...`, given the words.

    Raises:
        UserError: no preset, an unknown one (naming the nearest), or what `parse` raises.
        SystemExit: after `--help`; before a preset it lists them, after one it lists the fields. After `--presets`.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        about = (description or "").split("\n\n")[0]
        known = names() if names else f"{noun}:\n{listing(dict.fromkeys(presets, ''))}"
        placeholder = noun.upper()
        print(f"usage: {program()} {placeholder} [options]\n\n{about}\n\n{known}\n")
        print(f"{program()} {placeholder} --help lists the options.")
        if search:
            print(f"{program()} --{noun}s WORD... lists the {noun}s that match all words.")
        sys.exit(0)
    if search and name == f"--{noun}s":
        print(search(argv[1:]))
        sys.exit(0)
    if not name or name.startswith("-"):
        raise UserError(f"name a {noun} first: {program()} {next(iter(presets))} ({listed(presets)})")
    if name not in presets:
        remedy = nearest(name, presets, f"--{noun}s lists them")
        raise UserError(
            f"unknown {noun} {name!r}: {remedy}; if a plug-in has it, name its module in {plugins.VARIABLE}"
        )
    default = presets[name]
    unknown_option = partial(unknown, preset=name, presets=presets)
    prog = f"{program()} {name}"
    return parse(type(default), argv[1:], description, default=default, prog=prog, unknown_option=unknown_option)


def duration(seconds: float) -> str:
    """A duration in words: `45 s`, `12 min`, `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def shown(path: str | Path) -> str:
    """A path as a person would type it here: relative where it lies below the working directory, and never like an option."""
    try:
        text = str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        text = str(path)
    return f"./{text}" if text.startswith("-") else text


def typed_ui(root: str | Path) -> str:
    """How a person types the command that shows the runs below ``root`` in MLflow."""
    where = shown(root)
    return typed("ui") if where == "runs" else f"{typed('ui')} --root {shlex.quote(where)}"


def file_name(text: str) -> str:
    """A name for a file or folder, out of a text of any length: its beginning and a digest of all of it where it is too long."""
    name = text.replace("/", "-")
    data = name.encode()
    return name if len(data) <= 150 else f"{data[:130].decode(errors='ignore')}-{xxhash.xxh3_64_hexdigest(data)}"
