"""UPFs that the testbed knows nothing of."""

from collections.abc import Iterator

import pytest

from .foreign import Foreign


@pytest.fixture(name="foreign")
def _foreign(whole: Foreign) -> Foreign:
    whole.mend()
    return whole


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Foreign(tmp_path_factory.mktemp("foreign")) as node:
        yield node
