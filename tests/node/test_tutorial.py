"""The tutorial on UPFs of one's own runs as it is written: its files are written, its commands typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slicepilot.node.config.spec import NodeSpec
from slicepilot.testbed.lifecycle.processes import bin_folder

from .machine import Machine, MachineError
from .runtimes import start_docker

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "your-own-upfs.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AGAIN = "Core and radio as [above]"


@dataclass(frozen=True)
class Block:
    """A fenced block: commands in ``sh``, or a file where its language is followed by a name."""

    language: str
    file: str | None
    text: str


def section(title: str) -> list[Block]:
    text = TUTORIAL.read_text()
    start = text.index(f"\n## {title}\n")
    end = text.find("\n## ", start + 1)
    return [
        Block(kind, file or None, body) for kind, file, body in BLOCK.findall(text[start : end if end > 0 else None])
    ]


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Iterator[Machine]:
    tmp_path.chmod(0o755)
    try:
        machine = Machine(tmp_path)
    except MachineError as error:
        pytest.skip(str(error))
    try:
        (tmp_path / "build").mkdir()
        (tmp_path / "build" / "bin").symlink_to(bin_folder())
        yield machine
    finally:
        machine.close()


def follow(machine: Machine, blocks: list[Block]) -> list[str]:
    """Write the files and run the commands; what each block printed."""
    told = []
    for block in blocks:
        if block.file is not None:
            path = block.file if block.file.startswith("/") else str(machine.folder / block.file)
            machine.write(path, block.text)
        elif block.language == "sh":
            told.append(machine.run("bash", "-ec", block.text, timeout_s=180))
    return told


def test_with_systemd(machine: Machine) -> None:
    told = follow(machine, section("With systemd"))
    looked, filled_in, _, changed = told[2:6]
    check_words(looked, ["upf-1", "upf-2"], "systemd (CPUQuota= and CPUWeight=")
    check_words(filled_in, ["control", "video"], "systemd (CPUQuota= and CPUWeight=")
    assert "quota 50000 us in 100000 us in place of" in changed
    assert "perhaps by systemd" in changed
    report = json.loads((machine.folder / "report.json").read_text())
    assert report["mode"] == "live"
    for one in report["slices"]:
        assert 18.0 < one["carried_mbps"] < 22.0


def test_with_compose(machine: Machine) -> None:
    start_docker(machine)
    _, radio, *_ = (one for one in section("With systemd") if one.language == "sh" and one.file is None)
    machine.run("install", "-m", "755", *(f"build/bin/{name}" for name in ("smf", "load", "sink")), "/usr/local/bin/")
    services, up, look, act = section("With Compose")
    follow(machine, [services, up, radio])
    [looked] = follow(machine, [look])
    check_words(looked, ["edge.upf1.1", "edge.upf2.1"], "Docker (at `docker update`)")
    assert '{"compose": {"service": "upf1", "project": "edge"}}' in (machine.folder / "found.yaml").read_text()
    follow(machine, [act])
    report = json.loads((machine.folder / "report.json").read_text())
    assert report["mode"] == "live"
    assert all(one["carried_mbps"] > 5.0 for one in report["slices"])


def check_words(told: str, names: list[str], writer: str) -> None:
    """What the tutorial says that ``node check`` says."""
    words = " ".join(told.split())
    for name in names:
        assert re.search(rf"\b{name} upf \(\d+\) [12]\d\.\d Mbit/s in, [12]\d\.\d out, 100\.0% recognised", words), told
    assert words.count("cpu_limit acts") == words.count("nice acts") == words.count("egress acts") == len(names)
    assert writer in words


def test_five_slices_of_open5gs_are_a_configuration(tmp_path: Path) -> None:
    [text] = [one.text for one in section("With Open5GS") if one.file == "open5gs.yaml"]
    path = tmp_path / "open5gs.yaml"
    path.write_text(text)
    node = NodeSpec.from_yaml(str(path))
    assert len(node.slices) == 5
    assert TUTORIAL.read_text().count(AGAIN) == 1
