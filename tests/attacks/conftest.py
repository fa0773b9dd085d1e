"""For attacks: a process of a user without privileges, and a controller to attack."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controller.publisher.conftest import controller, make  # noqa: F401 (fixtures)
from tests.controller.record.conftest import bundle, keys, make_keys  # noqa: F401 (fixtures)
from tests.controller.watchdog.test_supervisor import kernel, node  # noqa: F401 (fixtures)
from tests.reachable import make_reachable

from .unprivileged import NOBODY


def as_nobody(act: Callable[[], object], uid: int = NOBODY) -> None:
    """Run something in a child of that user, without groups and capabilities; an exception there fails the test."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            make_reachable()
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            act()
            status = 0
        except BaseException:  # noqa: BLE001 (the child must not go on as a test)
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everybody can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="slicepilot-attack-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
