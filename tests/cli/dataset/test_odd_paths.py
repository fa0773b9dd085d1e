"""What leads to no file or folder, and files in other encodings, are named as what they are; nothing waits for them."""

import gzip
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import slicepilot

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
FORWARDING = SAMPLES / "mishra" / "o1_forwarding_exp_light.csv"
COMMANDS = {
    "validate": ("validate", "{}"),
    "import": ("import", "{}", "--out", "tables"),
    "import as": ("import", "{}", "--kind", "mishra-forwarding", "--out", "tables"),
    "convert": ("convert", "{}", "x.csv"),
    "analyse": ("analyse", "{}", "--out", "report"),
    "estimate": ("estimate", "{}", "--agents", "no-control"),
}


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD = {
    "is a symbolic link loop": loop,
    "is a symbolic link to nothing": dangling,
    "is a FIFO (named pipe)": os.mkfifo,
    "is a socket": unix_socket,
}


def failed(folder: Path, command: str, path: Path) -> str:
    """The one line that a command ends with, exit code 2, within a time that waits for nobody."""
    arguments = [str(path) if part == "{}" else part for part in COMMANDS[command]]
    result = slicepilot("dataset", *arguments, cwd=folder, timeout=60)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    [line] = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_waits_for_what_is_no_file(tmp_path: Path, command: str) -> None:
    path = tmp_path / "given.json"
    os.mkfifo(path)
    line = failed(tmp_path, command, path)
    assert f"{str(path)!r}: is a FIFO (named pipe); expected a regular file" in line


@pytest.mark.parametrize("what", [*ODD, "is a device"])
def test_a_path_is_named_as_what_it_is(tmp_path: Path, what: str) -> None:
    path = tmp_path / "given.csv" if what in ODD else Path("/dev/zero")
    if what in ODD:
        ODD[what](path)
    line = failed(tmp_path, "validate", path)
    assert line.endswith(f"path = {str(path)!r}: {what}; expected a regular file or folder")


UTF16, SEMICOLONS = "is UTF-16; expected UTF-8", "fields are separated by semicolons; expected commas"
OTHERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "UTF-16, marked": (lambda text: text.decode().encode("utf-16"), UTF16),
    "UTF-16, little end first": (lambda text: text.decode().encode("utf-16-le"), UTF16),
    "UTF-16, big end first": (lambda text: text.decode().encode("utf-16-be"), UTF16),
    "semicolons": (lambda text: text.replace(b",", b";"), SEMICOLONS),
    "tabs": (lambda text: text.replace(b",", b"\t"), SEMICOLONS.replace("semicolons", "tabs")),
    "UTF-16 with tabs": (lambda text: text.replace(b",", b"\t").decode().encode("utf-16"), UTF16),
    "empty": (lambda _: b"", "is empty; expected a "),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("other", OTHERS)
def test_files_of_other_encodings_say_which(tmp_path: Path, other: str, packed: bool) -> None:
    change, reason = OTHERS[other]
    data = change(FORWARDING.read_bytes())
    path = tmp_path / "o1_forwarding_exp_light.csv"
    path.write_bytes(gzip.compress(data) if packed else data)
    for command in ("validate", "import as"):
        line = failed(tmp_path, command, path)
        assert str(path) in line
        assert reason in line


def test_in_a_folder_such_files_are_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    text = FORWARDING.read_bytes()
    (folder / "o1_forwarding_exp_light.csv").write_bytes(text)
    for load, other in (("medium", "UTF-16, marked"), ("heavy", "semicolons")):
        (folder / f"o1_forwarding_exp_{load}.csv").write_bytes(OTHERS[other][0](text))
    (folder / "empty.txt").write_bytes(b"")
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    result = slicepilot("dataset", "validate", folder, timeout=60)
    assert result.returncode == 2
    assert "o1_forwarding_exp_light.csv: mishra-forwarding" in result.stdout
    assert f"o1_forwarding_exp_medium.csv: {UTF16}" in result.stderr
    assert f"o1_forwarding_exp_heavy.csv: {SEMICOLONS}" in result.stderr
