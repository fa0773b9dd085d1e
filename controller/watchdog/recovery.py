"""Restoring from the journal of a controller that has died together with its supervisor."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system.kernel_file import ActuatorError

from .journal import FILE, JournalError
from .journal_file import discard, find
from .restore import RestoreReport, restore


def recover(state: Path) -> str | None:
    """Restore what a dead controller has left; call it with the slices' locks held, before surveying.

    Args:
        state: folder of the controller.

    Returns:
        What was done, for the log; None if there was nothing to do.

    Raises:
        ConfigError: the journal's controller lives, or the journal is broken (it says how to go on).
        ActuatorError: something could not be put back; the journal is kept.
    """
    report = put_back(state)
    if report is None:
        return None
    text = f"{state / FILE}: left by a controller that has died: {report}"
    if report.failed:
        raise ActuatorError(text)
    return text


def put_back(state: Path) -> RestoreReport | None:
    """The same; returns the report, and only says there what could not be put back."""
    path = state / FILE
    try:
        left = find(state)
    except JournalError as error:
        raise ConfigError(f"{error}; restore the slices by hand, then remove it") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; accepted: a journal that can be read") from error
    journal = left.journal
    if journal is None:
        return RestoreReport(notes=list(left.notes)) if left.notes else None
    if journal.alive:
        raise ConfigError(f"{path}: its controller, process {journal.pid}, is running; accepted: one that has ended")
    report = restore(journal)
    report.notes += left.notes
    if not report.failed:
        try:
            discard(state)
        except OSError as error:
            report.notes.append(f"{path}: {error.strerror}: it stays, out of date")
    return report
