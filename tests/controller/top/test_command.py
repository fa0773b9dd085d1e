"""``slicepilot top`` without a terminal: one picture, or one document, for scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from tests.command import slicepilot

from .rings import Writer


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return slicepilot("top", *arguments, timeout=60, env=os.environ | {"COLUMNS": "80"} | environment)


def test_one_picture_for_scripts(path: Path) -> None:
    Writer(path, 20).write()
    root = str(path.parents[1])
    for options in (["--once"], []):  # not a terminal: the same
        done = run("--run-root", root, *options, LANG="C", LC_ALL="C")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
        assert len(re.findall(r"^slice\d+ ", done.stdout, re.MULTILINE)) == 20, "all of them, however many"
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_one_status_document(path: Path) -> None:
    Writer(path).write()
    done = run("--run-root", str(path.parents[1]), "--name", "sp", "--json")
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["run"]["name"] == "sp"
    assert [item["name"] for item in document["slices"]] == [f"slice{k}" for k in range(1, 6)]


def test_wait_lasts_until_the_ring_is_there(tmp_path: Path) -> None:
    (tmp_path / "ended").mkdir()  # what a controller has left
    for options in (["--name", "sp"], []):
        later = threading.Timer(2.0, lambda: Writer(tmp_path / "sp" / "ticks").write())
        later.start()
        done = run("--run-root", str(tmp_path), *options, "--wait", "--once")
        later.join()
        assert done.returncode == 0, done.stderr
        assert "slice5" in done.stdout
        assert done.stderr.splitlines() == [f"waiting for a controller in {tmp_path.joinpath(*options[1:])}"]
        (tmp_path / "sp" / "ticks").unlink()


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], [], "no controller runs there; start"),
        ([], ["--name", "b"], "b: no controller runs there; start"),
        (["a"], ["--name", "b"], "name: 'b'; expected one of a"),
        (["a", "b"], [], "name: not given; expected one of a, b"),
        (["a"], ["--interval", "0"], "--interval"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, names: list[str], options: list[str], message: str
) -> None:
    for name in names:
        Writer(tmp_path / name / "ticks").write(5)
    done = run("--run-root", str(tmp_path), *options, "--once")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
