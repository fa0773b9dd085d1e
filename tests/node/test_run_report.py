"""What `slicepilot run` says at its end, and logs, of a run whose mode was changed."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from .foreign import Foreign
from .runtimes import until
from .test_foreign import controller, knobs, slicepilot


def test_a_run_whose_mode_was_changed_reports_each_mode_and_what_was_left_to_others(
    foreign: Foreign, node: Path, tmp_path: Path
) -> None:
    where = ["--name", foreign.prefix, "--run-root", str(tmp_path / "run")]
    before = knobs(foreign)
    with controller(node, foreign, tmp_path, mode="shadow") as running:
        running.process.send_signal(signal.SIGUSR2)
        until(lambda: "the configured mode is shadow, which is in force" in running.log.read_text(), "not logged")
        slicepilot("control", "mode", "live", *where)
        until(lambda: knobs(foreign) != before, "no weight was moved")
        name = next(item for item in ("cpu.shares", "cpu.weight") if (foreign.group(1) / item).exists())
        (foreign.group(1) / name).write_text("77")
        until(lambda: running.notes()["totals"]["foreign_changes"] > 0, "not noticed")
        until(lambda: running.notes()["foreign"] != [], "not kept")
        slicepilot("control", "mode", "shadow", *where)
    (foreign.group(1) / name).write_text(before[f"1/{name}"])
    assert knobs(foreign) == before
    said = " ".join(running.log.read_text().split())  # lines are wrapped
    assert re.search(r"shadow [\d.]+ s, had it acted: policy", said)
    assert re.search(r"live [\d.]+ s: policy", said)
    assert re.search(r"guard: .*foreign_change \d+", said)
    assert "not the policy's: slice1 nice: another program has set it" in said
    assert said.count("original settings restored: 5 slices, 14 knobs; 1 knob left to other programs") == 2
