"""Time namespaces: commands with other clocks are refused, UPFs with other clocks are controlled as any."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.testbed.bench.rig import Controller
from tests.node.foreign import Foreign
from tests.node.test_foreign import SLICEPILOT, controller, knobs, measured, until

from .faults import BACK_S, IN_REAL_TIME_AS_ROOT, able, other_clocks, run, ticking, with_clocks

pytestmark = IN_REAL_TIME_AS_ROOT


@able
@pytest.mark.parametrize("offset_s", [100_000, BACK_S], ids=["ahead", "behind"])
def test_a_process_with_other_clocks_is_refused(foreign: Foreign, node: Path, tmp_path: Path, offset_s: int) -> None:
    """By its clocks a controller that lives would be dead, and its knobs and filters somebody's to take away."""
    with controller(node, foreign, tmp_path) as running:
        until(lambda: "htb" in knobs(foreign)["1/n6"], "nothing was shaped")
        held, where = knobs(foreign), ["--run-root", str(tmp_path / "run")]
        commands = [
            ["restore", "--state", str(tmp_path / "state"), "--name", foreign.prefix],
            ["run", "--node", str(node), "--seconds", "1", "--instance", "another"],
            ["top", "--once", "--name", foreign.prefix, *where],
            ["node", "check", str(node)],
            ["probe", "--node", str(node), "--duration", "1"],
        ]
        for command in commands[: None if offset_s > 0 else 2]:
            done = run(*other_clocks(offset_s), *SLICEPILOT, *command)
            assert done.returncode == 2, f"{command}: {done.stdout}{done.stderr}"
            [line] = done.stderr.splitlines()
            assert f"time namespace = monotonic {offset_s:+d} s, boottime {offset_s:+d} s; expected " in line
        ticking(running)
        assert measured_points(foreign, running)
        assert knobs(foreign) == held
        # Orders and their answers go by no clock but the controller's.
        requested = run(
            *other_clocks(offset_s), *SLICEPILOT, "control", "status", "--json", "--name", foreign.prefix, *where
        )
        assert requested.returncode == 0, requested.stderr
        assert 0 <= json.loads(requested.stdout)["beat_age_s"] < 5.0


def measured_points(foreign: Foreign, running: Controller) -> bool:
    """Whether nobody has taken the controller's programs off."""
    return not running.notes()["unmeasured"]


@able
def test_a_time_namespace_with_the_machines_clocks_is_none(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    before = knobs(foreign)
    config = tmp_path / "run.yaml"
    roots = {"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state")}
    config.write_text(yaml.safe_dump(roots | {"publish": {"log": "off"}}))
    command = [*SLICEPILOT, "run", "-c", str(config), "--node", str(node), "--seconds", "1", "--mode", "live"]
    done = run("unshare", "--time", *command)
    assert done.returncode == 0, done.stderr
    assert knobs(foreign) == before


@able
@pytest.mark.parametrize("offset_s", [100_000, BACK_S], ids=["ahead", "behind"])
def test_upfs_with_other_clocks_are_as_any(foreign: Foreign, node: Path, tmp_path: Path, offset_s: int) -> None:
    """Discovered, measured, moved, followed when they restart, and put back."""
    before = knobs(foreign)
    with with_clocks(foreign, 2, offset_s), controller(node, foreign, tmp_path) as running:
        foreign.load(seconds=10, mbps=4)
        until(lambda: measured(running, 1) and measured(running, 2), "not measured")
        time.sleep(1.0)
        with closing(running.reader()) as reader:
            seen = reader.last(80)["slices"][:, SLICE_FIELDS.index("delay_p99_us"), :2]
        p99_us = [np.median(column[column > 0]) for column in seen.T]
        assert 1 / 3 < p99_us[1] / p99_us[0] < 3, "beside a UPF with the machine's clocks"
        foreign.stop_upf(2)
        foreign.start_upf(2, WITHIN=" ".join(other_clocks(offset_s)))
        until(lambda: not measured(running, 2), "still measured")
        until(lambda: measured(running, 2), "not measured again")
        assert knobs(foreign) != before
    assert knobs(foreign) == before
    foreign.carried_mbps()
