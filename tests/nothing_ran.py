"""Fails a run of tests that were asked for by a marker (`pytest -m cluster`) when all of them were skipped.

Whoever names a marker wants its tests to run; a green run in which none did would look like a pass.
conftest.py imports the hooks.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

STASH = pytest.StashKey[set[str]]()
"""The reasons for skipping, if every test of this run was skipped."""


def reasons(config: pytest.Config) -> set[str]:
    """Why all tests of a finished run were skipped; empty if one ran, or if no marker was asked for."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("markexpr", ""):
        return set()
    if any(reporter.stats.get(kind) for kind in ("passed", "failed", "error", "xfailed", "xpassed")):
        return set()
    skipped = (report.longrepr for report in reporter.stats.get("skipped", []))
    return {reason[2].removeprefix("Skipped: ") for reason in skipped if isinstance(reason, tuple)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give a run whose tests were all skipped the exit status of a failed one."""
    found = reasons(session.config)
    session.config.stash[STASH] = found
    if found and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """Report at the very end why such a run counts as failed."""
    yield
    for reason in sorted(config.stash.get(STASH, set())):
        marker = config.getoption("markexpr")
        terminalreporter.write_line(f"error: no test of -m {marker!r} has run: {reason}", red=True)
