"""What an operator does to a running controller on real UPFs: modes, pause, safe, foreign changes and reloads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.watchdog.journal import journal_path
from slicepilot.testbed.backend.backend import targets_of
from slicepilot.testbed.bench.rig import KNOB_FILES, READY_S, Controller, Rig
from slicepilot.testbed.lifecycle.testbed import Testbed
from tests.testbed.controlled import (
    SLICES,
    WEIGHT,
    Records,
    constant,
    description,
    light,
    order,
    records,
    reported,
    rig_under,
    wait_ticks,
    weights,
)
from tests.testbed.controlled import missed as missed_by
from tests.testbed.write_watch import WriteWatch

NAME = "spi"
# Nice -5 for slice1 and 5 for the others.
AGENT = "static-weights-9-nice"
# Ticks of 10 ms that an order may cost: on a busy machine the thread that carries it out can be preempted while it has
# the interpreter.
MOST_MISSED = 5


@pytest.fixture
def rig(testbed: Testbed, tmp_path: Path) -> Iterator[Rig]:
    with rig_under(light(2.0), testbed, tmp_path) as rig:
        yield rig


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Policies by what they ask for on every slice."""
    root = tmp_path_factory.mktemp("bundles")
    return {"low": constant(root / "low", -0.5), "high": constant(root / "high", 0.5)}


def cost(controller: Controller, rig: Rig, *arguments: str) -> int:
    """Give an order that has to succeed; returns the ticks that were missed meanwhile and shortly after."""
    before, sequence = missed_by(controller), controller.ticks()
    done = order(rig, *arguments)
    assert done.returncode == 0, done.stderr
    wait_ticks(controller, 20)
    lost = missed_by(controller) - before
    seen = records(controller, controller.ticks() - sequence)
    assert (np.diff(seen["sequence"]) == 1).all()
    gap_ms = np.diff(seen["monotonic_ns"]).max() / 1e6
    print(f"{' '.join(arguments[:2])}: {lost} ticks missed, longest gap {gap_ms:.1f} ms")
    return lost


def changed(rig: Rig, result: dict[str, int]) -> set[str]:
    """Slices whose weight has changed."""
    return {name for name, weight in weights(rig).items() if weight != result[name]}


def open_flags(pid: int, rig: Rig) -> dict[str, int]:
    """How a process has opened control files of the testbed's groups (O_ACCMODE), by path."""
    groups = [str(rig.testbed.cgroup(name)) for name in SLICES]
    flags = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        path = str(fd.readlink())
        if path.startswith(tuple(groups)) and path.rpartition("/")[2] in KNOB_FILES:
            info = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text()
            flags[path] = int(re.findall(r"flags:\s*(\d+)", info)[0], 8) & os.O_ACCMODE
    return flags


def journalled(rig: Rig) -> bool:
    return journal_path(rig.state_folder).exists()


def given_to(module: str) -> dict[int, dict[str, Any]]:
    """What our processes that run a module were started with, by process id."""
    result = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"slicepilot.{module}".encode() in words:
            result[int(process.name)] = json.loads(words[-2])
    return result


def supervisors(controller: Controller) -> list[int]:
    """Process ids of its supervisors."""
    found = given_to("controller.watchdog.supervisor")
    return [pid for pid, given in found.items() if given["pid"] == controller.pid]


def estimate_s(rig: Rig) -> float:
    """Seconds between estimates of the running controller."""
    publishers = given_to("controller.publisher.process").values()
    (given,) = (item for item in publishers if item["run"] == str(rig.run_folder))
    return float(given["estimate_s"])


# -- modes ---------------------------------------------------------------------------------------------------------


def test_shadow_writes_nothing_and_live_does(rig: Rig, bundles: dict[str, str]) -> None:
    with WriteWatch(targets_of(rig.testbed)) as watch:
        controller = rig.start("shadow", bundle=bundles["low"])
        seen = wait_ticks(controller, 300)
        flags = open_flags(controller.pid, rig)
        assert estimate_s(rig) > 0
        assert rig.stop() == 0
    assert (seen["allowed"][-1][1] < 0).all(), "it wants to"
    assert (seen["applied"][-1][1] == 0).all()
    assert not watch.writes
    assert len(flags) >= 2 * len(SLICES)
    assert set(flags.values()) == {os.O_RDONLY}

    with WriteWatch(targets_of(rig.testbed)) as watch:
        controller = rig.start("live", "--force", bundle=bundles["low"])
        wait_ticks(controller, 50)
        assert os.O_RDWR in open_flags(controller.pid, rig).values()
        assert estimate_s(rig) == 0, "the simulator would be compiled beside the UPFs"
        rig.stop()
    written = {what for pid, what in watch.writes if pid == controller.pid}
    assert all(any(f"{name}/{WEIGHT}" in what for what in written) for name in SLICES), written


def test_modes_change_by_order_without_a_gap(rig: Rig, bundles: dict[str, str]) -> None:
    result, as_found = rig.knobs.read(), weights(rig)
    controller = rig.start("shadow", bundle=bundles["low"])
    assert not journalled(rig)
    assert not supervisors(controller)
    first = records(controller, 1)["sequence"][-1]

    assert cost(controller, rig, "mode", "live", "--force") <= MOST_MISSED
    assert journalled(rig)
    assert len(supervisors(controller)) == 1
    assert all(weight > was for weight, was in zip(weights(rig).values(), as_found.values(), strict=True))

    with WriteWatch(targets_of(rig.testbed)) as watch:
        assert cost(controller, rig, "mode", "shadow") <= MOST_MISSED
        wait_ticks(controller, 50)
        restored = watch.total
        wait_ticks(controller, 100)
        time.sleep(0.3)
        assert watch.total == restored, "nothing after the restoring"
    assert rig.knobs.read() == result
    assert not journalled(rig)
    assert not supervisors(controller)
    assert set(open_flags(controller.pid, rig).values()) == {os.O_RDONLY}
    last = records(controller, 1)[-1]
    assert (last["applied"][1] == 0).all(), "what holds was read after it had been restored"

    seen = records(controller, int(controller.ticks() - first))
    assert (np.diff(seen["sequence"]) == 1).all()
    assert [mode for mode, _ in runs(seen["mode"])][-3:] == [Mode.SHADOW, Mode.LIVE, Mode.SHADOW]


def test_a_canary_acts_on_named_slices_only(rig: Rig, bundles: dict[str, str]) -> None:
    others = [target for target in targets_of(rig.testbed) if target.name not in {"slice2", "slice4"}]
    result = weights(rig)
    controller = rig.start("shadow", bundle=bundles["low"])
    with WriteWatch(others) as watch:
        # Not in the node's order.
        assert cost(controller, rig, "mode", "canary", "--slices", "slice4,slice2", "--force") <= MOST_MISSED
        last = wait_ticks(controller, 30)[-1]
    assert not watch.writes
    assert controller.notes()["canary"] == ["slice2", "slice4"]
    assert last["mode"] == Mode.CANARY
    alone = (last["reasons"] & Reason.NOT_ACTING.bit).astype(bool)
    assert alone.tolist() == [True, False, True, False, True]
    assert changed(rig, result) == {"slice2", "slice4"}
    assert cost(controller, rig, "mode", "live", "--force") <= MOST_MISSED, "by way of the shadow"
    controller.wait_for(lambda: changed(rig, result) == set(SLICES), "live")
    assert cost(controller, rig, "mode", "canary", "--slices", "slice5", "--force") <= MOST_MISSED
    controller.wait_for(lambda: changed(rig, result) == {"slice5"}, "slice5 alone")


def test_signals_take_the_hands_off_and_put_them_on_again(rig: Rig) -> None:
    """In a canary, in which the others' files stay untouched all the time."""
    result = weights(rig)
    others = [target for target in targets_of(rig.testbed) if target.name not in {"slice1", "slice4"}]
    with WriteWatch(others) as watch:
        controller = rig.start("canary", agent=AGENT, canary=["slice4", "slice1"])
        wait_ticks(controller, 20)
        acted = weights(rig)
        assert acted["slice1"] > result["slice1"]
        assert acted["slice4"] < result["slice4"]
        assert changed(rig, result) == {"slice1", "slice4"}
        before = missed_by(controller)
        for _ in range(2):
            controller.process.send_signal(signal.SIGUSR1)
            controller.wait_ready("shadow")
            assert weights(rig) == result
            assert not journalled(rig)
            controller.process.send_signal(signal.SIGUSR2)
            controller.wait_ready("canary")
            controller.wait_for(lambda: weights(rig) == acted, "as before")
            assert controller.notes()["canary"] == ["slice1", "slice4"]
        print(f"four signals: {missed_by(controller) - before} ticks missed")
        assert missed_by(controller) - before <= 4 * MOST_MISSED
        assert controller.notes()["last_error"] is None
        rig.stop()
    assert not watch.writes


def while_it_starts(controller: Controller, number: signal.Signals, times: int) -> None:
    """Send a signal as soon as it is caught, which is before the first tick."""
    pid, sent = controller.process.pid, 0
    bit = 1 << (number - 1)
    deadline = time.monotonic() + READY_S
    while sent < times and time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        if int(re.findall(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[0], 16) & bit:
            controller.process.send_signal(number)
            sent += 1
        time.sleep(0.02)
    assert sent == times


def test_signals_while_it_starts_wait_until_it_has(rig: Rig) -> None:
    controller = rig.start("live", agent=AGENT, wait=False)
    while_it_starts(controller, signal.SIGUSR2, 20)
    controller.wait_ready("live")
    wait_ticks(controller, 50)
    assert controller.notes()["last_error"] is None
    assert rig.stop() == 0


def test_shadow_ordered_while_it_starts_holds_from_the_first_tick(rig: Rig) -> None:
    with WriteWatch(targets_of(rig.testbed)) as watch:
        controller = rig.start("live", agent=AGENT, wait=False)
        while_it_starts(controller, signal.SIGUSR1, 1)
        controller.wait_ready("shadow")
        seen = records(controller, controller.ticks())
        assert (seen["sequence"][0], set(seen["mode"].tolist())) == (1, {Mode.SHADOW})
    assert not watch.writes
    controller.process.send_signal(signal.SIGUSR2)
    controller.wait_ready("live")
    assert rig.stop() == 0


def test_a_signal_is_as_good_as_the_start_that_was_forced(rig: Rig, bundles: dict[str, str]) -> None:
    controller = rig.start("live", "--force", bundle=bundles["low"])
    controller.process.send_signal(signal.SIGUSR1)
    controller.wait_ready("shadow")
    controller.process.send_signal(signal.SIGUSR2)
    controller.wait_ready("live")
    assert order(rig, "mode", "shadow").returncode == 0
    assert order(rig, "reload", "--bundle", bundles["high"]).returncode == 0
    controller.process.send_signal(signal.SIGUSR2)
    controller.wait_for(lambda: controller.notes()["last_error"] is not None, "refused: nobody has forced this policy")
    assert "never promoted" in controller.notes()["last_error"]
    assert records(controller, 1)["mode"][-1] == Mode.SHADOW


def test_refused_changes_of_mode_change_nothing(rig: Rig, bundles: dict[str, str]) -> None:
    controller = rig.start("shadow", bundle=bundles["low"])
    for arguments, status, line in (
        (("mode", "canary", "--slices", "slice9"), 2, "unknown name 'slice9'; did you mean slice"),
        (("mode", "canary"), 2, "at least one slice for canary: --slices NAME"),
        (("mode", "live", "--slices", "slice1"), 2, "slices for canary only"),
        (("mode", "lvie"), 2, "did you mean live?"),
        (("mode", "live"), 1, "never promoted; run it in shadow"),
        (("mode", "canary", "--slices", "slice1"), 1, "never promoted"),
        (("reload", "--guard", "defualt"), 1, "did you mean default?"),
    ):
        assert line in reported(order(rig, *arguments), status), arguments
    before = missed_by(controller)
    seen = wait_ticks(controller, 20)
    assert set(seen["mode"].tolist()) == {Mode.SHADOW}
    assert not journalled(rig)
    assert missed_by(controller) - before <= MOST_MISSED


def runs(values: Any) -> list[tuple[int, int]]:
    """Values that follow each other, with how often."""
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(int(values[a]), b - a) for a, b in pairwise(starts)]


# -- orders --------------------------------------------------------------------------------------------------------


def test_pause_holds_and_safe_stays_until_resumed(rig: Rig, bundles: dict[str, str]) -> None:
    result = weights(rig)
    controller = rig.start("live", "--force", bundle=bundles["low"])
    wait_ticks(controller, 20)
    low = weights(rig)
    assert order(rig, "pause").returncode == 0
    assert order(rig, "reload", "--bundle", bundles["high"], "--force").returncode == 0
    seen = wait_ticks(controller, 50)
    assert set(seen["level"].tolist()) == {Level.HOLD}
    assert (seen["node_reasons"] & Reason.PAUSED.bit).all()
    assert (seen["wanted"][:, 1] > 0).all()
    assert weights(rig) == low, "paused"
    assert controller.notes()["paused"]

    assert order(rig, "resume").returncode == 0
    controller.wait_for(lambda: all_lower(rig, result), "the other policy")
    assert order(rig, "safe").returncode == 0
    seen = wait_ticks(controller, 100)
    assert set(seen["level"][-50:].tolist()) == {Level.SAFE}
    assert (seen["node_reasons"][-50:] & Reason.ORDERED_SAFE.bit).all()
    assert (seen["wanted"][:, 1] > 0).all()
    first, *others = weights(rig).values()
    assert first > 60 * max(others), "static-order is the default guard's safe setting"
    assert controller.notes()["ordered_safe"]
    assert order(rig, "resume").returncode == 0
    controller.wait_for(lambda: all_lower(rig, result), "the policy again")


def test_it_restores_ahead_of_ordinary_threads(rig: Rig) -> None:
    """Else, on a busy node, the supervisor counts a controller as hung that is about to end."""
    controller = rig.start("live", agent=AGENT)
    wait_ticks(controller, 20)
    seen: set[int] = set()
    controller.process.send_signal(signal.SIGINT)
    while controller.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            seen.add(os.sched_getscheduler(controller.process.pid) & ~os.SCHED_RESET_ON_FORK)
    assert os.SCHED_RR in seen


def all_lower(rig: Rig, result: dict[str, int]) -> bool:
    return all(weight < result[name] for name, weight in weights(rig).items())


def test_a_foreign_change_is_respected_until_resumed(rig: Rig, bundles: dict[str, str]) -> None:
    result = weights(rig)
    controller = rig.start("live", "--force", bundle=bundles["low"])
    wait_ticks(controller, 20)
    ours = weights(rig)
    (rig.testbed.cgroup("slice2") / WEIGHT).write_text("777")
    controller.wait_for(lambda: bool(controller.notes()["foreign"]), "noticed")
    assert order(rig, "reload", "--bundle", bundles["high"], "--force").returncode == 0
    wait_ticks(controller, 50)
    high = weights(rig)
    assert high["slice2"] == 777, "theirs, whatever the policy wants"
    assert high["slice3"] < result["slice3"] < ours["slice3"]
    assert order(rig, "resume").returncode == 0
    controller.wait_for(lambda: weights(rig)["slice2"] == high["slice3"], "ours again")
    assert rig.stop() == 0
    assert weights(rig) == result


# -- reloads -------------------------------------------------------------------------------------------------------


def test_a_broken_reload_is_refused_and_the_loop_goes_on(rig: Rig, bundles: dict[str, str], tmp_path: Path) -> None:
    roots = [str(tmp_path), str(Path(bundles["low"]).parent)]
    controller = rig.start("live", "--force", bundle=bundles["low"], reload_roots=roots)
    changed = tmp_path / "changed"
    shutil.copytree(bundles["high"], changed)
    with (changed / "policy.onnx").open("ab") as file:
        file.write(b"\0")
    guard = tmp_path / "guard.yaml"
    guard.write_text(yaml.safe_dump({"hysteresis": {"limit_ration": 0.1}}))
    wait_ticks(controller, 20)
    held, was, before = weights(rig), description(controller), missed_by(controller)
    for arguments, line in (
        (("--bundle", str(tmp_path / "nowhere")), "no such folder"),
        (("--bundle", str(changed)), "policy.onnx"),
        (("--bundle", bundles["high"]), "never promoted"),
        (("--bundle", constant(tmp_path / "nan", np.nan), "--force"), "its first decision fails"),
        (("--guard", str(guard)), "did you mean limit_ratio?"),
        (("--guard", str(guard), "--bundle", bundles["high"], "--force"), "did you mean limit_ratio?"),
    ):
        assert line in reported(order(rig, "reload", *arguments), 1), arguments
        notes = controller.notes()["reload"]
        controller.wait_for(lambda: controller.notes()["reload"] is not None, "reported")
        controller.wait_for(lambda line=line: line in controller.notes()["reload"]["detail"], f"{line}, not {notes}")
        assert controller.notes()["reload"]["ok"] is False
    lost = missed_by(controller) - before
    print(f"six refused reloads: {lost} ticks missed")
    assert lost <= 6 * MOST_MISSED
    assert description(controller) == was
    assert weights(rig) == held
    assert set(wait_ticks(controller, 20)["level"].tolist()) == {Level.NORMAL}


def test_a_reload_swaps_between_two_ticks(rig: Rig, bundles: dict[str, str], tmp_path: Path) -> None:
    roots = [str(tmp_path), str(Path(bundles["low"]).parent)]
    controller = rig.start("live", "--force", bundle=bundles["low"], reload_roots=roots)
    wait_ticks(controller, 20)
    first = description(controller)
    start = controller.ticks()
    assert cost(controller, rig, "reload", "--bundle", bundles["high"], "--force") <= MOST_MISSED
    second = description(controller)
    assert second["bundle"]["path"] == bundles["high"]
    assert second["bundle"]["digest"] != first["bundle"]["digest"]
    assert second["run_id"] == first["run_id"]
    seen = records(controller, controller.ticks() - start)
    assert_swapped(seen)
    assert controller.notes()["reload"]["ok"]

    guard = tmp_path / "guard.yaml"
    guard.write_text(yaml.safe_dump({"safe": {"default": {"nice": -3}}}))
    assert cost(controller, rig, "reload", "--guard", str(guard)) <= MOST_MISSED
    assert description(controller)["guard"]["safe"]["default"]["nice"] == -3
    assert order(rig, "safe").returncode == 0
    controller.wait_for(lambda: bool((records(controller, 1)["applied"][-1][1] == -3).all()), "the new guard's setting")


def assert_swapped(seen: Records) -> None:
    """From one tick to the next: another description, and another wish."""
    [(old, _), (new, count)] = runs(seen["description"])
    assert old != new
    assert count
    wishes = seen["wanted"][:, 1, 0]
    assert (wishes[seen["description"] == old] < 0).all()
    assert (wishes[seen["description"] == new] > 0).all()
