"""What lies in the working folder, or where somebody's environment points, is not run by root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.system.own_programs import (
    CODE_FOLDERS,
    CODE_PATHS,
    TEMPORARY,
    check_environment,
    environment,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces")

COMMAND = Path(sys.executable).with_name("slicepilot")
# Some that are imported early, late, and by any of the three processes.
MODULES = (
    *("argparse", "json", "signal", "socket", "pathlib", "dataclasses", "numpy", "yaml", "typer", "numba", "pyarrow"),
    *("onnxruntime", "slicepilot", "sitecustomize", "usercustomize", "prometheus_client", "http", "queue", "uuid"),
)
PROGRAMS = ("ip", "tc", "git", "nsenter", "python3")


@pytest.fixture(name="trap")
def _trap(tmp_path: Path) -> Path:
    """A folder that belongs to nobody, full of modules and programs that report when they are run."""
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in MODULES:
        (trap / f"{name}.py").write_text(f"open({str(tmp_path / 'hit')!r}, 'a').write({name!r} + chr(10))\n")
    for name in PROGRAMS:
        program = trap / name
        program.write_text(f"#!/bin/sh\necho {name} >>{tmp_path / 'hit'}\n")
        program.chmod(0o755)
    for path in (trap, *trap.iterdir()):
        os.chown(path, 65534, 65534)
    return trap


def hits(trap: Path) -> str:
    hit = trap.with_name("hit")
    return hit.read_text() if hit.exists() else ""


@pytest.mark.parametrize("path", ["", ":", "."], ids=["none", "empty", "dot"])
def test_no_process_of_a_controller_imports_from_the_working_folder(trap: Path, path: str) -> None:
    """`bench loop` is a whole controller, with publisher and supervisor. An empty PYTHONPATH entry means the folder."""
    variables = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} | ({"PYTHONPATH": path} if path == "" else {})
    command = [str(COMMAND), "bench", "loop", "--seconds", "1", "--json"]
    done = subprocess.run(command, cwd=trap, env=variables, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert hits(trap) == ""


@pytest.mark.parametrize("arguments", [["node", "discover"], ["doctor"], ["restore"], ["control", "status"], ["top"]])
def test_commands_do_not_either(trap: Path, arguments: list[str]) -> None:
    command = [str(COMMAND), *arguments]
    subprocess.run(command, cwd=trap, capture_output=True, timeout=400, check=False)
    assert hits(trap) == ""


def test_a_child_has_nothing_of_the_environment_that_code_could_come_from(trap: Path) -> None:
    hostile = {
        **{name: str(trap) for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "LD_LIBRARY_PATH")},
        "LD_PRELOAD": str(trap / "json.py"),
        "PYTHONSTARTUP": str(trap / "json.py"),
        "NUMBA_GDB_BINARY": "x",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "LLVM_PROFILE_FILE": "x",
        "MALLOC_CONF": "x",
        "OMP_NUM_THREADS": "1",
    }
    kept = environment(hostile)
    # What is not of the starter's is ours.
    of_ours = {
        *("PYTHONPATH", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "ARROW_DEFAULT_MEMORY_POOL"),
        "SLICEPILOT_WITHOUT_GYMNASIUM",
    }
    assert kept.keys() - of_ours == {"LC_ALL", "HOME", "OMP_NUM_THREADS"}
    assert environment(hostile | dict.fromkeys(of_ours, "x")) == kept
    assert kept["PYTHONPATH"] != str(trap)


def test_compiled_code_of_others_is_refused(trap: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(trap))
    with pytest.raises(ConfigError, match=r"NUMBA_CACHE_DIR = .*: user 65534, drwx"):
        check_environment()
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(own))
    check_environment()
    own.chmod(0o777)
    with pytest.raises(ConfigError, match="expected a folder of root's"):
        check_environment()
    command = [str(COMMAND), "bench", "loop", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


VARIABLES = (*CODE_FOLDERS, *CODE_PATHS, TEMPORARY)


@pytest.fixture(name="theirs")
def _theirs(tmp_path: Path) -> Path:
    """A folder of nobody's, with a folder of root's in it."""
    theirs = tmp_path / "theirs"
    (theirs / "ours").mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    return theirs


@pytest.mark.parametrize("name", VARIABLES)
def test_a_folder_of_roots_below_a_strangers_is_refused(
    name: str, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stranger may rename it after the check, and put another folder in its place."""
    for given in (theirs / "ours", theirs / "ours" / "deeper" / "not-there-yet"):
        monkeypatch.setenv(name, str(given))
        with pytest.raises(ConfigError, match=rf"{name} = .*{theirs}: user 65534, drwx.*; expected a folder of root's"):
            check_environment()
    shown = [str(COMMAND), "doctor"]
    done = subprocess.run(shown, env={**os.environ}, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_links_in_a_path_are_resolved_once(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's link to a folder of root's is followed while it is checked, and not afterwards."""
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    (theirs / "link").symlink_to(own)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(theirs / "link"))
    check_environment()
    assert os.environ["NUMBA_CACHE_DIR"] == str(own)


def test_a_folder_that_is_not_there_yet_is_made_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared / "cache"))
    monkeypatch.setenv("TMPDIR", str(shared))
    check_environment()
    assert (shared / "cache").stat().st_mode & 0o777 == 0o700
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="NUMBA_CACHE_DIR"):
        check_environment()


def test_a_home_of_somebody_else_is_not_used(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(theirs))
    check_environment()
    assert os.environ["HOME"] == "/root"
