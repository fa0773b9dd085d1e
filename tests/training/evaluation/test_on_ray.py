"""An evaluation on Ray says what a single process says, bit for bit, also where a worker is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-c", "from slicepilot.cli import main; main()"]
ROOT = Path(__file__).parents[3]
CHOSEN = {
    "named": ("--scenario", "multi-promise", "--scenario", "andrade-ramp", "--seeds", "2"),
    "drawn": ("--suite", "drawn", "--scenarios", "3", "--seeds", "2"),
}
AGENTS = ("--agents", "no-control,experiment-5,captain,random,greedy", "--no-mlflow", "--json", "--results", "results")


def evaluate(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    bundle = str(ROOT / "tests" / "data" / "starves-priority")
    command = [*PROGRAM, "evaluate", "--bundle", bundle, *AGENTS, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, "")
    return out


def saved(folder: Path) -> Any:
    """What was saved, without what is of one run alone: its time, its command, the times that plays took."""
    text = (folder / "results" / "results.json").read_text().replace(str(folder), "FOLDER")
    document = json.loads(text)
    del document["provenance"]
    del document["arrays_sha256"]  # names of drawn hardware are paths
    for scenario in document["scenarios"]:
        for agent in scenario["agents"]:
            del agent["wall_s"]
    return document


def playing(pid: int) -> list[int]:
    """Workers of a command that play right now: Ray names a process after its task."""
    result = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"ray::simulate_rollout"):
                result += [int(entry.name)] if pid in ancestors(int(entry.name)) else []
        except OSError:  # it has ended meanwhile
            continue
    return result


def ancestors(pid: int) -> set[int]:
    result: set[int] = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        result.add(pid)
    return result


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", CHOSEN)
def test_the_figures_are_those_of_one_process_bit_for_bit(suite: str, tmp_path: Path) -> None:
    alone = end(evaluate(tmp_path / "alone", *CHOSEN[suite]))
    process = evaluate(tmp_path / "on-ray", *CHOSEN[suite], "--ray")
    if suite == "named":  # kill a worker that plays: its play is done again
        deadline = time.monotonic() + 150
        while not (those := playing(process.pid)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(those[0], signal.SIGKILL)
    assert end(process) == alone
    assert saved(tmp_path / "on-ray") == saved(tmp_path / "alone")
