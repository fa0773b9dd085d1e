"""Testbeds for the tests here, where the machine can have them."""

from collections.abc import Iterator

import pytest

from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing
from tests.testbed.controlled import fresh_testbed


@pytest.fixture(scope="session", autouse=True)
def _possible() -> None:
    if lacking := missing():
        pytest.skip(f"this machine lacks {'; '.join(lacking)}")


@pytest.fixture(scope="module")
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A testbed that the tests of a module share; its NAME is the module's."""
    with fresh_testbed(TestbedSpec(name=request.module.NAME, burn_us=50)) as testbed:
        yield testbed
