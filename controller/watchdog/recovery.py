"""Restoring from the journal of a controller that has died together with its supervisor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.data.files import remove_file

from .journal import PREFIX, Journal, JournalError, journal_path
from .restore import RestoreReport, restore


def recover(state: Path, groups: Iterable[Path] = ()) -> str | None:
    """Restore what dead controllers have left; call it with the slices' locks held, before surveying.

    Args:
        state: folder of the controller.
        groups: that it is about to change. A dead controller of another name or state folder that has changed one of
            them is restored, too: its settings would be taken for original settings.

    Returns:
        What was done, for the log; None if there was nothing to do.

    Raises:
        ConfigError: the journal's controller runs, or the journal is damaged.
        ActuatorError: something could not be restored; the journal is kept.
    """
    own, texts = journal_path(state), []
    for path in (own, *_others_left(own, groups)):
        report = restore_left(path)
        if report is not None:
            texts.append(f"{path}: left by a controller that has died: {report}")
            if report.failed:
                raise ActuatorError(texts[-1])
    return "; ".join(texts) or None


def restore_left(path: Path) -> RestoreReport | None:
    """Restore from a journal as `recover`, but return a report that lists what could not be restored."""
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


def _others_left(own: Path, groups: Iterable[Path]) -> Iterator[Path]:
    """Other journals of this boot with the settings of one of these groups, or of a pod that is one of them."""
    inodes = {group.stat().st_ino for group in groups}
    for path in sorted(own.parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(JournalError, OSError):  # damaged, or just removed: nobody can say whose it is
            journal = Journal.load(path)
            theirs = {part.cgroup_inode for entry in journal.slices for part in (entry, entry.pod) if part is not None}
            if path != own and journal.of_this_boot and inodes & theirs:
                yield path
