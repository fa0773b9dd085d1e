"""What others have left in the folder that root is started in does not decide where root writes, or what it runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.configs.ownership import check_own
from slicepilot.controller.watchdog import lock
from slicepilot.training.runs import store
from slicepilot.training.runs.tracking import EXPERIMENT, Tracker

from .unprivileged import NOBODY, holding

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes somebody else")

COMMAND = Path(sys.executable).with_name("slicepilot")
TRACK = "from slicepilot.training.runs.tracking import Tracker; Tracker('mine').finish()"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", name="prepared")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow, set up."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        Tracker("first").finish()
    return folder / "mlflow.db"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: root's own."""
    folder = tmp_path / "work"
    folder.mkdir(mode=0o755)
    monkeypatch.chdir(folder)
    return folder


def give(path: Path) -> None:
    """To nobody."""
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


# -- locks ---------------------------------------------------------------------------------------------------------


@pytest.fixture(name="held")
def _held(folder: Path) -> Iterator[Path]:
    """The working folder, which anybody can open, locked by somebody without rights."""
    with holding(folder):
        yield folder


def test_a_lock_on_the_working_folder_keeps_no_run_waiting(held: Path, prepared: Path) -> None:
    shutil.copy(prepared, held / "mlflow.db")
    subprocess.run([sys.executable, "-c", TRACK], cwd=held, timeout=120, check=True, capture_output=True)


def lock_of(folder: Path) -> Path:
    status = folder.stat()
    return lock.private_folder() / f"mlflow-{status.st_dev:x}-{status.st_ino:x}"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_lies_where_the_lock_belongs_is_not_followed_emptied_or_waited_for(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "FOR_ROOT", tmp_path / "private")
    (tmp_path / "victim").write_text("root's own")
    if kind == "link":
        lock_of(folder).symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(lock_of(folder))
    with pytest.raises(ConfigError, match=r"symbolic links|prw.* of user 0: remove it"):
        Tracker("mine")
    assert (tmp_path / "victim").read_text() == "root's own"


def test_a_lock_that_is_held_for_too_long_names_the_holder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "FOR_ROOT", tmp_path / "private")
    monkeypatch.setattr(store, "SETTING_UP_S", 1.5)
    with lock_of(folder).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=rf"mlflow\.db: process {os.getpid()} has set it up for .*--no-mlflow"):
            Tracker("mine")
    assert "waiting for another run that sets up" in capfd.readouterr().err
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700


def test_one_at_a_time_holds_the_lock_whose_file_goes_with_the_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "FOR_ROOT", tmp_path / "private")
    monkeypatch.setattr(store, "_POLL_S", 1e-4)
    holders, most = 0, list[int]()

    def hold() -> None:
        nonlocal holders
        for _ in range(30):
            with store.alone(folder / "mlflow.db"):
                holders += 1
                time.sleep(1e-4)
                most.append(holders)
                holders -= 1

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert most == [1] * 180
    assert not list((tmp_path / "private").iterdir())


PRIVATE = """
import os, pwd, sys, tempfile, types
from slicepilot.controller.watchdog.lock import private_folder
pwd.getpwuid = lambda user: types.SimpleNamespace(pw_dir=sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(private_folder())
"""


def test_the_locks_of_a_user_with_a_home_are_not_in_a_folder_of_all_users() -> None:
    """There, somebody else could take the name of their folder first."""
    with tempfile.TemporaryDirectory() as home:
        give(Path(home))
        command = [sys.executable, "-c", PRIVATE, home]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == f"{home}/.cache/slicepilot-private"


# -- MLflow's database ---------------------------------------------------------------------------------------------


def leads_to(database: Path, folder: Path) -> None:
    """Have runs keep their files in a folder, now and after each change of it."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE experiments SET artifact_location = ? WHERE name = ?", [folder.as_uri(), EXPERIMENT])
        connection.execute(
            "CREATE TRIGGER again AFTER INSERT ON runs BEGIN UPDATE runs SET artifact_uri = "
            f"'{folder.as_uri()}' WHERE run_uuid = NEW.run_uuid; END"
        )
        connection.commit()


def refused(folder: Path, what: str) -> None:
    """A run does not start, and says what is not ours and how to go on."""
    with pytest.raises(ConfigError, match=rf"^MLflow's default database: {folder}.*{what}.*--no-mlflow") as caught:
        Tracker("mine")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("whose", ["file", "writable", "link", "journal", "folder", "shared", "artifacts", "leading"])
def test_a_strangers_database_does_not_decide_where_root_writes(
    whose: str, folder: Path, prepared: Path, tmp_path: Path
) -> None:
    database, victim = folder / "mlflow.db", tmp_path / "victim"
    victim.mkdir()
    shutil.copy(prepared, database)
    leads_to(database, victim)
    if whose == "file":
        give(database)
    elif whose == "writable":
        database.chmod(0o666)
    elif whose == "link":
        database.rename(tmp_path / "elsewhere.db")
        database.symlink_to(tmp_path / "elsewhere.db")
        give(database)
    elif whose == "journal":
        (folder / "mlflow.db-journal").write_bytes(b"pages")
        give(folder / "mlflow.db-journal")
    elif whose == "folder":
        give(folder)
    elif whose == "shared":
        folder.chmod(0o1777)
    elif whose == "artifacts":
        (folder / "mlartifacts").symlink_to(victim)
        give(folder / "mlartifacts")
    else:
        give(tmp_path)
    refused(
        tmp_path if whose == "leading" else folder,
        "can be written by everybody" if whose in {"writable", "shared"} else f"belongs to user {NOBODY}",
    )
    assert list(victim.iterdir()) == []
    os.chown(tmp_path, 0, 0)


def test_an_own_database_is_used(folder: Path, prepared: Path) -> None:
    shutil.copy(prepared, folder / "mlflow.db")
    Tracker("mine").finish()
    assert (folder / "mlflow.db").stat().st_uid == 0


def test_the_caller_of_sudo_works_in_his_own_folder(
    folder: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may run commands as root could write anywhere with them."""
    shutil.copy(prepared, folder / "mlflow.db")
    for path in (folder, folder / "mlflow.db"):
        give(path)
    refused(folder, "belongs to user")
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    Tracker("mine").finish()


# -- other defaults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "link"),
    [
        (("evaluate", "--scenario", "multi-promise", "--agents", "no-control", "--no-mlflow"), "reports"),
        (("train", "-c", "ppo-smoke", "--no-mlflow"), "runs"),
        (("demo",), "runs"),
        (("report", "results"), "report.html"),
        (("dataset", "fetch", "moreira"), "datasets"),
        (("dataset", "analyse", "delays.csv"), "reports"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_output_by_default_does_not_go_through_a_strangers_link(
    arguments: tuple[str, ...], link: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (folder / link).symlink_to(tmp_path / "victim")
    give(folder / link)
    done = subprocess.run(
        [str(COMMAND), *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{folder / link} belongs to user {NOBODY}; expected a path that nobody else can change" in done.stderr
    assert list((tmp_path / "victim").iterdir()) == []


def test_what_is_ours_is_accepted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "reports").symlink_to(tmp_path / "elsewhere")
    check_own(Path("reports/evaluation"), "", "")
    (tmp_path / "elsewhere" / "evaluation").mkdir()
    give(tmp_path / "elsewhere" / "evaluation")
    with pytest.raises(ConfigError, match=r"reports/evaluation belongs to user"):
        check_own(Path("reports/evaluation/results.json"), "", "")


COMPILE = """
import os
from slicepilot.env.compiled import kernel
from numba.core import config
print(config.CACHE_DIR, config.DISABLE_JIT)
@kernel(cache=False)
def twice(x): return 2 * x
assert twice(2) == 4  # numba looks at the file again
print(config.CACHE_DIR, config.DISABLE_JIT)
"""


def test_numba_takes_no_settings_from_the_working_folder(folder: Path, tmp_path: Path) -> None:
    """They say where compiled code is, which numba loads and runs."""
    (folder / ".numba_config.yaml").write_text(f"cache_dir: {tmp_path / 'trap'}\ndisable_jit: 1\n")
    give(folder / ".numba_config.yaml")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == " 0\n 0\n"
    assert not (tmp_path / "trap").exists()


def test_only_the_module_that_sees_to_that_imports_numba() -> None:
    root = Path(__file__).parents[2]
    folders = ("env", "agents", "controller", "training", "configs", "data", "testbed", "node", "cluster", "cli")
    found = {
        str(file.relative_to(root))
        for folder in folders
        for file in (root / folder).rglob("*.py")
        if any(line.lstrip().startswith(("import numba", "from numba")) for line in file.read_text().splitlines())
    }
    assert found == {"env/compiled.py"}


def test_figures_take_no_settings_from_the_working_folder(folder: Path) -> None:
    (folder / "matplotlibrc").write_text("text.usetex: True\n")
    give(folder / "matplotlibrc")
    code = "import slicepilot.training.reports.page, matplotlib; print(matplotlib.rcParams['text.usetex'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"
