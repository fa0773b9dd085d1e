"""UPFs for faults of their machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.conftest import _foreign, _node  # noqa: F401 (fixtures)
from tests.node.foreign import Foreign

from .faults import UPFS


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Foreign(tmp_path_factory.mktemp("machine"), count=UPFS, prefix="ma", BURN_NS="20000") as node:
        yield node
