"""Training sets PyTorch's threads for the whole process: tests put them back."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    torch = sys.modules.get("torch")  # not imported for tests that do without
    before = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(before)
