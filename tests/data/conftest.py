from collections.abc import Iterator

import pytest

from slicepilot.data.csv import native


@pytest.fixture(scope="module", params=["compiled", "not compiled"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the readers' loops in C, and with what is done where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.SWITCH, "1" if request.param == "compiled" else "0")
        native.compiled.cache_clear()
        if request.param == "compiled" and native.compiled() is None:
            pytest.skip("no C compiler")
        yield
    native.compiled.cache_clear()
