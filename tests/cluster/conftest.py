"""A cluster for all tests of this folder: it takes some 20 s to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..node.machine import Machine, MachineError
from .cluster import Cluster


@pytest.fixture(scope="session", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    folder.chmod(0o755)
    machine = None
    try:
        machine = Machine(folder)
        yield Cluster(machine)
    except MachineError as error:
        pytest.skip(str(error))
    finally:
        if machine is not None:
            machine.close()
