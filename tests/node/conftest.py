"""UPFs that the testbed knows nothing of."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .foreign import Foreign, written


@pytest.fixture(name="foreign")
def _foreign(whole: Foreign) -> Foreign:
    whole.mend()
    return whole


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Foreign(tmp_path_factory.mktemp("foreign")) as node:
        yield node


@pytest.fixture(name="node")
def _node(foreign: Foreign, tmp_path: Path) -> Path:
    """The configuration of all of them."""
    return written(tmp_path, foreign.prefix, *foreign.document()["slices"])
