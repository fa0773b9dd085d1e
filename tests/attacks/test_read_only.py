"""A state folder that becomes read-only: the settings are restored, and all processes end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.node.foreign import Foreign
from tests.node.machine import children
from tests.node.test_foreign import controller, knobs, slicepilot, until


@pytest.fixture(scope="module", name="foreign")
def _foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Foreign(tmp_path_factory.mktemp("read-only"), count=2, prefix="fr") as node:
        yield node


@contextlib.contextmanager
def disk(path: Path) -> Iterator[None]:
    """A file system of its own at a path, which turns read-only with an error."""
    path.mkdir()
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(1 << 24)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", str(image), str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def make_read_only(path: Path) -> None:
    """As ext4 does after an error, even if files are open for writing; the error is made up."""
    device = subprocess.run(["findmnt", "-no", "SOURCE", str(path)], check=True, capture_output=True, text=True)
    Path("/sys/fs/ext4", Path(device.stdout.strip()).name, "trigger_fs_error").write_text("for a test")
    with pytest.raises(OSError, match="Read-only"):
        (path / "more").write_text("")


def test_sigterm_restores_everything_and_ends_all_processes(foreign: Foreign, tmp_path: Path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(yaml.safe_dump(foreign.document()))
    before = knobs(foreign)
    with disk(tmp_path / "state"), controller(node, foreign, tmp_path) as running:
        until(lambda: knobs(foreign) != before, "nothing was moved")
        ended = [running.supervisor, *children(running.pid)]
        make_read_only(tmp_path / "state")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        assert knobs(foreign) == before
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ended), "a process is left")
        lines = running.log.read_text().splitlines()
    assert not any("Traceback" in line for line in lines), lines


def test_a_start_on_a_read_only_disk_fails_and_changes_nothing(foreign: Foreign, tmp_path: Path) -> None:
    node, state = tmp_path / "node.yaml", tmp_path / "state"
    node.write_text(yaml.safe_dump(foreign.document()))
    config = {"run_root": str(tmp_path / "run"), "state_root": str(state), "publish": {"log": "off"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    before = knobs(foreign)
    run = ["run", "-c", str(tmp_path / "run.yaml"), "--node", str(node), "--agent", "static-weights-9"]
    with disk(state):
        (state / foreign.prefix).mkdir()
        make_read_only(state)
        done = slicepilot(*run, "--mode", "live", "--seconds", "1", code=1)
    progress, error = done.stderr.splitlines()
    assert "starting live" in progress
    assert "Read-only file system" in error
    assert knobs(foreign) == before
