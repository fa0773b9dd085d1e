"""MLflow in folders of any name, and when it does not answer: said soon, with what to do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slicepilot.configs import ConfigError
from slicepilot.training.runs import store
from slicepilot.training.runs.tracking import EXPERIMENT, Tracker
from tests.command import slicepilot

AWAY = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}
NAMES = (
    *("with blank", "query?x=1", "q", "branch%2Fname", "with%20blank", "100%", "#1", "a&b=c+d;e", "Größe-日本"),
    *("a:b@c", "it's", 'say "x"', "[red]", "{x}", "$HOME", "back\\slash", "two\nlines"),
)
SLACK_S = 10.0  # for a busy machine, where MLflow's own waits take minutes


@pytest.fixture(scope="module", name="database")
def _database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow; setting a new one up takes seconds."""
    folder = tmp_path_factory.mktemp("new") / "100%25 new?"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        Tracker("first").finish()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return folder / "mlflow.db"


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def runs_in(database: Path) -> dict[str, str]:
    """Names of the runs, with the folder of their artifacts."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("SELECT name, artifact_uri FROM runs").fetchall())


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_kept_in_a_folder_of_any_name(
    name: str, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "beside" / name
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    shutil.copy(database, "mlflow.db")
    with contextlib.closing(sqlite3.connect("mlflow.db")) as connection:  # to make the experiment here
        connection.execute("UPDATE experiments SET name = 'other' WHERE name = ?", [EXPERIMENT])
        connection.commit()
    Path("kept.txt").write_text("kept")
    tracker = Tracker("mine")
    tracker.artifact(Path("kept.txt"), "files")
    tracker.finish()
    assert tracker.lost == 0
    assert "mine" in runs_in(folder / "mlflow.db")
    kept = list((folder / "mlartifacts").rglob("kept.txt"))
    assert [path.parent.name for path in kept] == ["files"]
    assert [path.name for path in folder.parent.iterdir()] == [name], "nothing beside the folder"
    assert [path.name for path in tmp_path.iterdir()] == ["beside"]


def test_an_old_address_of_the_default_database_still_means_it(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(database, "mlflow.db")
    for address in (f"sqlite:///{tmp_path}/mlflow.db", "sqlite:///mlflow.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert store.database_of(address) == tmp_path / "mlflow.db"
        Tracker(address).finish()
    assert len(runs_in(tmp_path / "mlflow.db")) == 3


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refused(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error for an address that cannot be used, which comes soon, in a line."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"^MLFLOW_TRACKING_URI = ") as caught:
        Tracker("mine")
    assert time.monotonic() - started < store.FIRST_CONTACT_S + SLACK_S
    message = str(caught.value)
    assert "\n" not in message
    assert "write --no-mlflow, or tracking: none in a configuration file" in message
    return message


def test_a_server_that_says_nothing_is_waited_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with silent_server() as port:
        message = refused(f"http://me:secret@127.0.0.1:{port}", monkeypatch)
    assert f"'http://me:...@127.0.0.1:{port}': no answer in 5 s" in message
    assert f"waiting for MLflow at http://me:...@127.0.0.1:{port}, at most 5 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://127.0.0.1:1", "Connection refused"),
        ("http://no-such-host.invalid:5000", "Name or service not known|failure in name resolution"),
        ("sqlite:////proc/version", "unable to open|readonly"),
        ("gopher://nowhere", "unsupported URI"),
        ("sqlite:///FOLDER/other.db", "file is not a database"),
    ],
)
def test_an_address_that_cannot_be_used_is_said_at_once(
    address: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.db").write_bytes(b"no database" * 1000)
    address = address.replace("FOLDER", str(tmp_path))
    assert re.search(why, refused(address, monkeypatch))


def test_a_deleted_experiment_says_how_to_restore_it(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the command that it names does."""
    folder = tmp_path / "a?b%20c"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(database, "mlflow.db")
    with contextlib.closing(sqlite3.connect("mlflow.db")) as connection:
        connection.execute("UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = ?", [EXPERIMENT])
        connection.commit()
    with pytest.raises(ConfigError, match="has been deleted; to restore it: ") as caught:
        Tracker("mine")
    assert "--no-mlflow" in str(caught.value)
    restore = str(caught.value).partition("to restore it: ")[2].partition(";")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", restore], env=os.environ | {"PATH": path}, check=True, timeout=120, capture_output=True)
    Tracker("mine").finish()
    assert "mine" in runs_in(folder / "mlflow.db")


class OnceMlflow(BaseHTTPRequestHandler):
    """Answers what starts a run, and nothing once ``gone`` is set; ``busy`` cannot update runs."""

    gone = threading.Event()
    busy = False
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._answer({"experiment": {"experiment_id": "1", "name": EXPERIMENT, "lifecycle_stage": "active"}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path.rpartition("/")[2])
        if self.busy and self.asked[-1] == "update":
            self._answer({"error_code": "INTERNAL_ERROR", "message": "database is locked"}, 500)
            return
        info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING", "lifecycle_stage": "active"}
        self._answer({"run": {"info": info | {"artifact_uri": "mlflow-artifacts:/1/r"}, "data": {}}})

    def _answer(self, document: dict[str, Any], status: int = 200) -> None:
        if self.gone.is_set():
            time.sleep(4.0)
            return
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 (its name there)


@contextlib.contextmanager
def served(handler: type[OnceMlflow], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_is_busy_makes_no_second_run_of_a_resumed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class BusyMlflow(OnceMlflow):
        gone = threading.Event()
        busy = True

    with served(BusyMlflow, monkeypatch), pytest.raises(ConfigError, match="too many 500 error responses"):
        Tracker("mine", run_id="r")
    assert "create" not in BusyMlflow.asked


def test_a_server_that_is_lost_during_a_run_holds_it_up_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(OnceMlflow, monkeypatch):
        tracker = Tracker("mine")
        monkeypatch.setattr("slicepilot.training.runs.tracking.FLUSH_S", 0.0)
        tracker.metrics({"reward": 1.0}, 0)
        assert (tracker.lost, OnceMlflow.asked[-1]) == (0, "log-batch")
        OnceMlflow.gone.set()
        asked = len(OnceMlflow.asked)
        for step in range(1, 50):
            tracker.metrics({"reward": 1.0}, step)
        assert (tracker.lost, len(OnceMlflow.asked) - asked) == (1, 1)
        tracker.finish()
        assert tracker.lost == 50, "49 points and the end"
        assert "50 entries could not be written" in capfd.readouterr().err


# -- commands ------------------------------------------------------------------------------------------------------


def test_evaluate_says_that_mlflow_is_away_before_it_runs_anything(tmp_path: Path) -> None:
    command = ("evaluate", "--scenario", "multi-promise", "--agents", "no-control", "--seeds", "100")
    done = slicepilot(*command, cwd=tmp_path, env=os.environ | AWAY, timeout=120)
    assert done.returncode == 2
    assert "Connection refused" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_train_goes_on_without_mlflow_when_it_is_told_to(tmp_path: Path) -> None:
    """And names the next command; a run that is resumed keeps its curves."""
    command = ("train", "-c", "ppo-smoke", "--steps", "256", "--scenario", "flash-crowd", "--out", "out")
    done = slicepilot(*command, cwd=tmp_path, env=os.environ | AWAY)
    assert (done.returncode, done.stderr.count("Connection refused")) == (2, 1), done.stderr
    done = slicepilot(*command, "--no-mlflow", cwd=tmp_path, env=os.environ | AWAY)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "bundle" / "bundle.yaml").is_file()
    assert "exporting the policy" in done.stderr
    assert done.stdout.splitlines()[-1] == "next: slicepilot evaluate --bundle out/bundle --scenario flash-crowd"
    curves = (tmp_path / "out" / "metrics.jsonl").read_text()
    done = slicepilot("train", "--resume", "out", "--steps", "512", "--no-mlflow", cwd=tmp_path, env=os.environ | AWAY)
    assert done.returncode == 0, done.stderr
    resumed = (tmp_path / "out" / "metrics.jsonl").read_text()
    assert resumed.startswith(curves)
    assert len(resumed) > len(curves) > 0
