"""Ray on this machine is this user's alone: where it listens, who may read its files, what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.training.cluster.session import FOR_ALL, FOR_THIS_MACHINE, RAYS_PART, SOCKET_PATH, _private_folder

# Listening sockets of this process and all that it has started, by address; as `ss -ltn`, from /proc.
INSIDE = """
import json, os, signal, stat, sys
from pathlib import Path
from slicepilot.training.cluster.session import ray_session

def descendants(root):
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass
    result, new = {root}, {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - result
        result |= new
    return result

def listening(pids):
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                yield columns[1].rpartition(":")[0]

before = signal.getsignal(signal.SIGTERM)
with ray_session(None, cpus=1) as ray:
    def look():
        import os
        return {"threads": os.environ["OMP_NUM_THREADS"], "cwd": os.getcwd()}
    worker = ray.get(ray.remote(look).remote())
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    private = next(folder for folder in session.parents if folder.name.startswith("slicepilot-"))
    pids = descendants(os.getpid())
    seen = {
        "worker": worker,
        "mode": stat.S_IMODE(private.stat().st_mode),
        "listening": sorted(set(listening(pids))),
        "sockets": [str(path) for path in private.rglob("sockets/*")],
        "dashboard": ray._private.worker._global_node.webui_url,
        "authentication": os.environ["RAY_AUTH_MODE"],
        "signals": signal.getsignal(signal.SIGTERM) == before,
        "pids": sorted(pids - {os.getpid()}),
    }
seen["left"] = private.exists()
seen["environment"] = sorted(name for name in os.environ if name.startswith("RAY_"))
json.dump(seen, sys.stdout)
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("session")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", INSIDE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "cwd": str(folder)}


def test_it_listens_on_the_loopback_interface_alone(seen: dict[str, Any]) -> None:
    assert seen["listening"], "it does listen"
    assert set(seen["listening"]) <= LOOPBACK
    assert seen["authentication"] == "token"
    assert not seen["dashboard"]


def test_its_folder_is_closed_to_others_and_short_enough(seen: dict[str, Any]) -> None:
    assert seen["mode"] == 0o700
    assert len(seen["sockets"]) >= 2
    assert all(len(path) <= SOCKET_PATH for path in seen["sockets"])


def test_workers_have_one_thread_and_the_folder_of_the_command(seen: dict[str, Any]) -> None:
    assert seen["worker"] == {"threads": "1", "cwd": seen["cwd"]}


def test_nothing_is_left_behind(seen: dict[str, Any]) -> None:
    assert (seen["left"], seen["signals"]) == (False, True)
    assert not {"RAY_AUTH_TOKEN", *FOR_ALL, *FOR_THIS_MACHINE} & set(seen["environment"])
    assert seen["pids"], "there were processes"
    assert not [pid for pid in seen["pids"] if Path(f"/proc/{pid}").exists()]


def test_a_long_folder_for_temporary_files_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = _private_folder()
    try:
        assert not folder.is_relative_to(deep)
        assert len(str(folder / "r")) + RAYS_PART <= SOCKET_PATH
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        folder.rmdir()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"TMPDIR = '.*': expected a writable folder, of at most \d+ characters"):
        _private_folder()
