"""Links in a folder of somebody else, where a file is going to be written: what they lead to is never written to.

A stranger who owns the folder, or may write to it, makes a link to a file of root's under a name that a command writes
to, or under the name of its temporary file.
"""

from __future__ import annotations

import ast
import dataclasses
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError
from slicepilot.controller.record.ring import TickRing
from slicepilot.controller.telemetry.report.export import _open
from slicepilot.data.faults import Faults
from slicepilot.data.files import appended, created, replace_file, replacing
from slicepilot.data.studies.fetching import fetch
from slicepilot.data.tables.tidy import Origin, Stream, write_csv, write_tidy
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.recording.minari_files import write_minari
from slicepilot.training.recording.recording import record_simulated

ROOT = Path(__file__).parents[2]
SECRET = b"of root alone\n"
BATCH = pa.record_batch([pa.array([1, 2])], pa.schema([("value", pa.int64())]))


@pytest.fixture(name="victim")
def _victim(tmp_path: Path) -> Iterator[Path]:
    """A file that nothing may write to, in a folder of its own."""
    (tmp_path / "root").mkdir()
    victim = tmp_path / "root" / "shadow"
    victim.write_bytes(SECRET)
    victim.chmod(0o600)
    yield victim
    assert victim.read_bytes() == SECRET
    assert victim.stat().st_mode & 0o777 == 0o600
    assert list(victim.parent.iterdir()) == [victim]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs"


def stream() -> Stream:
    return Stream(BATCH.schema, iter([BATCH]), ())


def of_probe(path: Path) -> None:
    _open(path, "slice,delay_us", "--csv").close()


def of_tidy(path: Path) -> None:
    source = path.parent / "source.csv"
    source.write_text("value\n1\n")
    write_tidy(path, stream(), Origin("kind", source), Faults())
    source.unlink()


WRITERS: dict[str, Callable[[Path], object]] = {
    "probe --csv": of_probe,
    "dataset convert to CSV": lambda path: write_csv(stream(), path),
    "dataset import": of_tidy,
    "replace_file": lambda path: replace_file(path, b"x"),
    "created": lambda path: created(path).close(),
    "the ring": lambda path: TickRing(path, 1, 16),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("staged", [False, True])
def test_a_link_under_a_files_name_or_its_temporary_name_is_not_followed(
    name: str, staged: bool, folder: Path, victim: Path
) -> None:
    path = folder / "out.parquet"
    link = folder / f".{path.name}.{os.getpid()}" if staged else path
    link.symlink_to(victim)
    WRITERS[name](path)
    assert not path.is_symlink()
    assert path.is_file()
    assert path.read_bytes() != SECRET


@pytest.mark.parametrize("staged", [False, True])
def test_a_download_follows_no_link(staged: bool, folder: Path, victim: Path) -> None:
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"whole")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    target = folder / "data.csv"
    if staged:
        (folder / f".{target.name}.{os.getpid()}").symlink_to(victim)
    else:
        target.symlink_to(folder / "nowhere")
    with http.server.HTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        fetch(f"http://127.0.0.1:{server.server_address[1]}/data.csv", target)
    assert not target.is_symlink()
    assert target.read_bytes() == b"whole"
    assert list(folder.iterdir()) == [target]


def test_a_minari_dataset_is_not_written_through_a_link(folder: Path, victim: Path) -> None:
    scenario = dataclasses.replace(Scenario.from_yaml("testbed-contention"), duration_s=0.2, control_period_s=0.01)
    agents = [make("random", scenario.slice_set(), scenario.hardware_spec())]
    episodes = record_simulated(agents, scenario, 1, 0, RewardWeights.from_yaml())
    (folder / f".edge-v0.{os.getpid()}").symlink_to(victim.parent)
    write_minari(episodes, folder / "edge-v0")
    assert (folder / "edge-v0" / "data").is_dir()
    assert (folder / "edge-v0").stat().st_mode & 0o777 == 0o755


def test_reports_are_not_added_to_what_a_link_leads_to(folder: Path, victim: Path) -> None:
    (folder / "reports.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        appended(folder / "reports.jsonl")


def test_devices_and_pipes_are_refused_and_stay(folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null"), Path("/dev/stdout")):
        before = path.lstat()
        with pytest.raises(FileExistsError, match="expected a regular file"):
            replace_file(path, b"x")
        assert path.lstat().st_ino == before.st_ino
    with pytest.raises(ConfigError, match=r"--csv = .*pipe: is a FIFO"):
        of_probe(pipe)


def test_what_fails_half_way_leaves_what_was_there(folder: Path) -> None:
    path = folder / "out.csv"
    path.write_text("before")
    half: Any = "half"
    with pytest.raises(TypeError), replacing(path) as file:
        file.write(half)
    assert path.read_text() == "before"
    assert list(folder.iterdir()) == [path]


WRITES = {"write_text", "write_bytes", "savefig", "to_csv", "to_parquet", "copyfile", "copy2", "copytree"}
OWN_WAYS = {
    "controller/service/trial.py": "a descriptor that was handed over",
    "controller/system/realtime.py": "a file of the kernel",
    "controller/watchdog/supervisor.py": "files of the kernel",
    "node/cli/discover.py": "a new file, by O_EXCL",
    "training/reports/page.py": "a figure in memory",
    "training/studies/grosvik/packets.py": "files of the kernel",
    "testbed/backend/traffic.py": "a folder that root has just made below /run",
    "testbed/bench/": "files of the kernel, a temporary folder",
    "testbed/lifecycle/": "files of the kernel, a folder that root has just made below /run",
}


def test_files_are_written_in_one_way() -> None:
    """No module opens a file to write by its name, but for these."""
    found = set()
    for part in ("agents", "cli", "cluster", "configs", "controller", "data", "env", "node", "testbed", "training"):
        for file in (ROOT / part).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            if any(map(writes, ast.walk(ast.parse(file.read_text())))):
                found.add(next((known for known in OWN_WAYS if name.startswith(known)), name))
    assert found <= set(OWN_WAYS)


def writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name != "open":
        return name in WRITES
    given = [*node.args[:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    modes = [item.value for item in given if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
