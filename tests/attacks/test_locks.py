"""A lock that a local user holds on our folders keeps nobody waiting."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.watchdog import lock
from slicepilot.controller.watchdog.lock import Locks, private_folder

from .unprivileged import NOBODY, holding, start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes somebody else")


@pytest.fixture(name="held")
def _held(tmp_path: Path) -> Iterator[Path]:
    """A folder that anybody can open, locked by somebody without rights; and the folder that locks lie in as well, if
    he can."""
    folder = tmp_path / "sp"
    folder.mkdir()
    with holding(folder):
        yield folder


def test_a_strangers_lock_on_a_folder_of_ours_is_nothing_to_us(held: Path) -> None:
    descriptor = os.open(held, os.O_RDONLY)
    with pytest.raises(BlockingIOError):  # it is held indeed
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    with Locks({"controller sp": held}), pytest.raises(ConfigError, match=f"is controlled by process {os.getpid()}"):
        Locks({"controller sp": held}, patience_s=0.1)


def test_nobody_but_root_can_open_what_is_locked(held: Path) -> None:
    with Locks({"controller sp": held}) as locks:
        path = str(Path(f"/proc/self/fd/{locks.descriptors[0]}").readlink())
        with start(
            f"try:\n    os.open({path!r}, os.O_RDONLY)\nexcept PermissionError:\n    print('refused')"
        ) as process:
            assert process.communicate(timeout=60)[0] == "refused\n"


@pytest.mark.parametrize("mode", [0o755, 0o770], ids=["readable", "group"])
def test_a_folder_for_locks_that_others_can_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(lock, "FOR_ROOT", tmp_path / "private")
    (tmp_path / "private").mkdir()
    (tmp_path / "private").chmod(mode)
    with pytest.raises(ActuatorError, match="expected a folder that only user 0 can open"):
        private_folder()


def test_a_folder_for_locks_that_somebody_else_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "FOR_ROOT", tmp_path / "private")
    (tmp_path / "private").mkdir(mode=0o700)
    os.chown(tmp_path / "private", NOBODY, NOBODY)
    with pytest.raises(ActuatorError, match="drwx------ of user 65534"):
        private_folder()
    (tmp_path / "private").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "private").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ActuatorError, match="lrwxrwxrwx"):
        private_folder()
