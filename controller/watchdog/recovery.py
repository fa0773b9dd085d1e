"""Restoring from the journal of a controller that has died together with its supervisor."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.data.files import remove_file

from .journal import Journal, JournalError, journal_path
from .restore import RestoreReport, restore


def recover(state: Path) -> str | None:
    """Restore what a dead controller has left; call it with the slices' locks held, before surveying.

    Args:
        state: folder of the controller.

    Returns:
        What was done, for the log; None if there was nothing to do.

    Raises:
        ConfigError: the journal's controller runs, or the journal is damaged.
        ActuatorError: something could not be restored; the journal is kept.
    """
    report = restore_left(state)
    if report is None:
        return None
    text = f"{journal_path(state)}: left by a controller that has died: {report}"
    if report.failed:
        raise ActuatorError(text)
    return text


def restore_left(state: Path) -> RestoreReport | None:
    """As `recover`, but returns a report that lists what could not be restored."""
    path = journal_path(state)
    try:
        journal = Journal.load(path)
    except FileNotFoundError:
        return None
    except JournalError as error:
        raise ConfigError(f"{error}; restore the slices by hand, then remove it") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a readable journal") from error
    if journal.alive:
        raise ConfigError(f"{path}: its controller, process {journal.pid}, is running; stop it first")
    report = restore(journal)
    if not report.failed:
        remove_file(path)
    return report
