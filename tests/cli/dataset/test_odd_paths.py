"""What leads to no file or folder, and files in other encodings, are named as what they are; nothing waits for them."""

import gzip
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slicepilot.cli.dataset.estimate import _episodes
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.files import read_episodes
from tests.command import slicepilot

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
FORWARDING = SAMPLES / "mishra" / "o1_forwarding_exp_light.csv"
COMMANDS = {
    "validate": ("validate", "{}"),
    "import": ("import", "{}", "--out", "tables"),
    "import as": ("import", "{}", "--kind", "mishra-forwarding", "--out", "tables"),
    "convert": ("convert", "{}", "x.csv"),
    "analyse": ("analyse", "{}", "--out", "report"),
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
@pytest.mark.parametrize("what", ["is a symbolic link loop", "is a FIFO (named pipe)"])
def test_no_command_waits_for_what_is_no_file(tmp_path: Path, command: str, what: str) -> None:
    path = tmp_path / "given.json"
    ODD[what](path)
    assert f"{str(path)!r}: {what}; expected a regular file" in failed(tmp_path, command, path)


@pytest.mark.parametrize("name", ["given.json", "given.parquet", "given"])
@pytest.mark.parametrize("what", ["is a symbolic link loop", "is a FIFO (named pipe)"])
def test_neither_do_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    ODD[what](tmp_path / name)
    with pytest.raises(ConfigError, match=re.escape(f"'{name}': {what}; expected a regular file")):
        _episodes(name, None)
    with pytest.raises(ConfigError, match=re.escape(f"{name}: {what}; expected a file of episodes")):
        read_episodes(Path(name))


@pytest.mark.parametrize("what", ODD)
def test_a_path_is_named_as_what_it_is(tmp_path: Path, what: str) -> None:
    path = tmp_path / "given.csv"
    ODD[what](path)
    assert failed(tmp_path, "validate", path).endswith(
        f"path = {str(path)!r}: {what}; expected a regular file or folder"
    )


def test_a_device_has_no_end(tmp_path: Path) -> None:
    assert "path = '/dev/zero': is a device; expected a regular file or folder" in failed(
        tmp_path, "validate", Path("/dev/zero")
    )


def utf16(mark: bytes, encoding: str) -> Callable[[bytes], bytes]:
    return lambda text: mark + text.decode().encode(encoding)


OTHERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "UTF-16, little end first, marked": (utf16(b"\xff\xfe", "utf-16-le"), "is UTF-16; expected UTF-8"),
    "UTF-16, big end first, marked": (utf16(b"\xfe\xff", "utf-16-be"), "is UTF-16; expected UTF-8"),
    "UTF-16, little end first": (utf16(b"", "utf-16-le"), "is UTF-16; expected UTF-8"),
    "UTF-16, big end first": (utf16(b"", "utf-16-be"), "is UTF-16; expected UTF-8"),
    "semicolons": (lambda text: text.replace(b",", b";"), "fields are separated by semicolons; expected commas"),
    "tabs": (lambda text: text.replace(b",", b"\t"), "fields are separated by tabs; expected commas"),
    "UTF-16 with tabs": (
        lambda text: text.replace(b",", b"\t").decode().encode("utf-16"),
        "is UTF-16; expected UTF-8",
    ),
    "empty": (lambda _: b"", "is empty; expected a "),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("other", OTHERS)
def test_files_of_other_encodings_say_which(tmp_path: Path, other: str, packed: bool) -> None:
    change, reason = OTHERS[other]
    data = change(FORWARDING.read_bytes())
    path = tmp_path / "o1_forwarding_exp_light.csv"
    path.write_bytes(gzip.compress(data) if packed else data)
    for command in ("validate", "import", "import as"):
        line = failed(tmp_path, command, path)
        assert str(path) in line
        assert reason in line


@pytest.mark.parametrize("name", ["utf16", "semicolons"])
def test_in_a_folder_such_a_file_is_named_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    text = FORWARDING.read_bytes()
    (folder / "o1_forwarding_exp_light.csv").write_bytes(text)
    broken = text.decode().encode("utf-16") if name == "utf16" else text.replace(b",", b";")
    (folder / "o1_forwarding_exp_heavy.csv").write_bytes(broken)
    (folder / "empty.txt").write_bytes(b"")
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    result = slicepilot("dataset", "validate", folder, timeout=60)
    assert result.returncode == 2
    assert "o1_forwarding_exp_light.csv: mishra-forwarding" in result.stdout
    assert "o1_forwarding_exp_heavy.csv: " in result.stderr
    assert "expected UTF-8" in result.stderr or "expected commas" in result.stderr
