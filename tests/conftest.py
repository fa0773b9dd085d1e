"""Rules for the whole suite."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
# What measures real time: it runs by itself, after everything else (see the Makefile).
LIVE = (TESTS / "testbed", TESTS / "controller")
REQUIRE_LIVE = os.environ.get("SLICEPILOT_REQUIRE_LIVE") == "1"
# A first example may have to wait for a compiler, any of them for a busy machine.
settings.register_profile("slicepilot", deadline=None)
settings.load_profile("slicepilot")


def pytest_configure() -> None:
    """A job in the background of a shell starts with Ctrl-C ignored, and hands that on to what its tests interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that measure real time."""
    for item in items:
        if item.path.name != "test_cli.py" and any(item.path.is_relative_to(folder) for folder in LIVE):
            item.add_marker(pytest.mark.live)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """With SLICEPILOT_REQUIRE_LIVE=1 (CI as root) nothing may be skipped: a test that was is a failure."""
    report = yield
    if REQUIRE_LIVE and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped ({report.longrepr}), but SLICEPILOT_REQUIRE_LIVE=1"
    return report
