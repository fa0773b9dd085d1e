"""Rules for the whole suite."""

import functools
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from .effort import examples

TESTS = Path(__file__).parent
# What needs root, kernel objects or the built programs. It runs beside other tests: names are a process's own.
LIVE = (
    "attacks/test_listeners.py",
    "controller/actuators",
    "controller/loop",
    "controller/publisher",
    "controller/service",
    "controller/system",
    "controller/telemetry",
    "controller/watchdog",
    "deploy/test_prometheus.py",
    "training/recording/test_prometheus.py",
    "node",
    "testbed",
)
# Tests that bring up testbeds: one after the other, or two of them would use the machine up.
ONE_BY_ONE = TESTS / "testbed"
# What saturates the machine on purpose, or times what a machine must not disturb: it runs by itself.
REALTIME = ("controller/watchdog/test_supervisor.py", "testbed/backend", "testbed/operation/test_bad_policies.py")
# What takes minutes: whole testbeds, UPFs of others, attacks on running controllers, Ray. `make test` leaves it out but
# for the files below, which go the whole way once.
SLOW = (
    "agents/heuristics/planners/test_mpc.py",
    "attacks/machine",
    "attacks/test_confinement.py",
    "attacks/test_floors.py",
    "attacks/test_foreign_code.py",
    "attacks/test_guarantees.py",
    "attacks/test_journal.py",
    "attacks/test_listeners.py",
    "attacks/test_orders.py",
    "attacks/test_packets.py",
    "attacks/test_read_only.py",
    "attacks/test_rtnetlink.py",
    "controller/watchdog/test_supervisor.py",
    "deploy/test_prometheus.py",
    "node",
    "test_package.py",
    "testbed",
    "training/cluster",
    "training/evaluation/test_on_ray.py",
    "training/recording/test_prometheus.py",
    "training/sweeps/test_tune.py",
)
ONCE = ("node/test_bad_input.py", "node/test_find.py", "testbed/lifecycle", "testbed/operation/test_demo.py")
# Ray gives up on processes of its own that take 30 s to start, as on a busy machine.
RAY = ("training/cluster", "training/evaluation/test_on_ray.py", "training/sweeps/test_tune.py")
REQUIRE_LIVE = os.environ.get("SLICEPILOT_REQUIRE_LIVE") == "1"
# A first example may have to wait for a compiler, any of them for a busy machine.
settings.register_profile("slicepilot", deadline=None, max_examples=examples(100))
settings.load_profile("slicepilot")


def pytest_configure() -> None:
    """A job in the background of a shell starts with Ctrl-C ignored, and hands that on to what its tests interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is live, and begin with it: its waits are filled by what comes beside it, and no long file is last.

    What has to do with a kernel that others use too may be tried a second time; the end of the run names it. What is
    fuzzed may not: a second try would not draw what the first has drawn.
    """
    for item in items:
        if _is_in(item.path, SLOW) and not _is_in(item.path, ONCE):
            item.add_marker(pytest.mark.slow)
        if _is_in(item.path, REALTIME):
            item.add_marker(pytest.mark.realtime)
        if not item.get_closest_marker("realtime") and _is_in(item.path, LIVE):
            item.add_marker(pytest.mark.live)
        on_kernel = any(map(item.get_closest_marker, ("live", "realtime"))) or _is_in(item.path, RAY)
        if item.get_closest_marker("fuzz") is None and on_kernel:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))
    items.sort(key=lambda item: (not item.path.is_relative_to(ONE_BY_ONE), item.get_closest_marker("live") is None))


@functools.cache
def _is_in(path: Path, names: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(TESTS / name) for name in names)


class ByFile(LoadFileScheduling):
    """Each file's tests stay in one process, with their fixtures, and all that bring up testbeds in one as well.

    Not by `xdist_group`: with pytest 9.2 pytest-xdist 3.8 does not see those groups.
    """

    def _split_scope(self, nodeid: str) -> str:
        own = f"{TESTS.name}/{ONE_BY_ONE.name}/"
        return own if nodeid.startswith(own) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Share the tests of `--dist loadfile` out."""
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """With SLICEPILOT_REQUIRE_LIVE=1 (CI as root) nothing may be skipped but what is opt-in: a test that was is a
    failure."""
    report = yield
    opt_in = item.get_closest_marker("opt_in") is not None
    if REQUIRE_LIVE and report.skipped and not hasattr(report, "wasxfail") and not opt_in:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped ({report.longrepr}), but SLICEPILOT_REQUIRE_LIVE=1"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that did not pass at once."""
    if again := sorted({report.nodeid for report in terminalreporter.getreports("rerun")}):
        terminalreporter.section(f"needed a second run: {len(again)}")
        for name in again:
            terminalreporter.line(name)
