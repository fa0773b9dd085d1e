"""UPFs for faults of their machine, and the node configuration for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.foreign import Foreign
from tests.node.test_foreign import document_of

from .faults import UPFS, written


@pytest.fixture(name="foreign")
def _foreign(whole: Foreign) -> Foreign:
    whole.mend()
    return whole


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Foreign(tmp_path_factory.mktemp("machine"), count=UPFS, prefix="ma", BURN_NS="20000") as node:
        yield node


@pytest.fixture(name="node")
def _node(foreign: Foreign, tmp_path: Path) -> Path:
    return written(tmp_path, document_of(foreign))
