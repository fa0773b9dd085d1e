"""Taking a testbed down from what its journal says, whatever state it is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import cgroups, network
from .journal import TestbedJournal, uninterrupted
from .layout import STATE_FOLDER
from .processes import ProcessId


def running() -> list[str]:
    """Names of the testbeds that are up, or were left by a crash."""
    if not STATE_FOLDER.is_dir():
        return []
    return sorted(folder.name for folder in STATE_FOLDER.iterdir() if TestbedJournal(folder).exists)


def reclaim(name: str) -> None:
    """Take a testbed down whose owner (see `Testbed.up`) has gone without doing so; any other is left as it is.

    Raises:
        ConfigError, OSError: as `take_down`.
    """
    entries = TestbedJournal(STATE_FOLDER / name).entries("testbed")
    owner = entries[0].get("owner") if entries else None
    if owner is not None and not ProcessId(**owner).alive:
        take_down(name)


def take_down(name: str) -> bool:
    """Remove what a testbed of this name has made; False if there is nothing. Good after a crash, and twice.

    Raises:
        ConfigError: it is being set up or taken down by another process.
        OSError: something could not be removed; the journal stays, so that it can be tried again.
    """
    if name not in running():
        return False
    journal = TestbedJournal(STATE_FOLDER / name)
    with journal.locked():
        remove_all(journal)
    return True


def remove_all(journal: TestbedJournal) -> None:
    """Newest first: programs, namespaces, cgroups. Goes on over single failures and raises the first in the end."""
    failures: list[OSError] = []
    with uninterrupted():
        for entry in reversed(journal.entries()):
            try:
                _remove(entry)
            except OSError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        journal.forget()


def _remove(entry: dict[str, Any]) -> None:
    if entry["kind"] == "process":
        ProcessId(entry["pid"], entry["start_ticks"]).stop()
    elif entry["kind"] == "netns":
        network.remove_namespace(entry["name"])
    elif entry["kind"] == "cgroup":
        cgroups.remove(Path(entry["path"]))
