"""Backends by name, and what becomes of a question that one of them has no answer to."""

import pytest

from slicepilot.configs import ConfigError
from slicepilot.configs.backends import BackendPlugin, plugin, plugins


def test_an_unknown_backend_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"backend: unknown name 'testbet'; did you mean testbed\?"):
        plugin("testbet")


def test_what_a_backend_lacks_is_named() -> None:
    bare = BackendPlugin("bare")
    assert bare.call("missing") == bare.call("checks") == []
    able = ", ".join(name for name, other in plugins().items() if other.open_backend)
    assert "testbed" in able
    with pytest.raises(ConfigError, match=rf"^backend = 'bare': has no open_backend; backends with it: {able}$"):
        bare.call("open_backend", "multi-promise")
