"""Packets are sent through UPFs that somebody else runs, and it is said where they are lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.testbed.lifecycle.processes import bin_folder

from .foreign import Foreign
from .test_foreign import document_of, in_netns, slicepilot

UE, TEID = "10.61.1.2", 1


class Smf:
    """The project's SMF, told what to do line by line."""

    def __init__(self, node: Foreign) -> None:
        command = ["ip", "netns", "exec", f"{node.prefix}-ran", str(bin_folder() / "smf"), "--json", "--script", "-"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.ask("associate", upf="10.211.1.2")

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if answer.get("op") == op:
                assert answer["ok"], answer
                return answer
        raise AssertionError(f"the SMF has ended at {op}")

    def establish(self, **other: Any) -> None:
        own = {"session": "a", "ue": UE, "teid": TEID, "gnb": "10.210.1.1", "gnb_teid": TEID}
        self.ask("establish", upf="10.211.1.2", n3="10.210.1.2", qfi=9, sst=1, sd="000001", **own | other)

    @contextlib.contextmanager
    def changed(self, back: dict[str, Any], **change: Any) -> Iterator[None]:
        self.ask("modify", session="a", **change)
        try:
            yield
        finally:
            self.ask("modify", session="a", **back)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.ask("quit")
        self._process.communicate()


@pytest.fixture(scope="module", name="rig")
def _rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    node = Foreign(tmp_path_factory.mktemp("send"), count=1, prefix="fp")
    try:
        yield node
    finally:
        node.down()


@pytest.fixture(scope="module", name="smf")
def _smf(rig: Foreign) -> Iterator[Smf]:
    """In the place of the one that has come with the rig."""
    rig.stop_smf()
    smf = Smf(rig)
    try:
        smf.establish()
        yield smf
    finally:
        smf.close()


class Node:
    """A configuration of the rig, to be checked."""

    def __init__(self, rig: Foreign, folder: Path) -> None:
        self.rig, self.path, self.document = rig, folder / "node.yaml", document_of(rig)
        self.slice = self.document["slices"][0]
        self.slice["test_session"] = {"ue": UE, "teid": TEID, "qfi": 9}

    def check(self, *more: str, code: int = 0, seconds: float = 0.3) -> dict[str, dict[str, Any]]:
        self.path.write_text(yaml.safe_dump(self.document))
        done = slicepilot("node", "check", str(self.path), "--seconds", str(seconds), "--send", "--json", *more, code=code)
        [found] = json.loads(done.stdout)
        sent: dict[str, dict[str, Any]] = found["sent"]
        return sent

    def refused(self) -> str:
        self.path.write_text(yaml.safe_dump(self.document))
        lines = slicepilot("node", "check", str(self.path), "--send", code=2).stderr.splitlines()
        assert len(lines) == 1, lines
        return lines[0]


@pytest.fixture(name="node")
def _node(rig: Foreign, smf: Smf, tmp_path: Path) -> Node:
    return Node(rig, tmp_path)


def results(sent: dict[str, dict[str, Any]]) -> list[str]:
    return [sent[direction]["result"] for direction in ("uplink", "downlink")]


def test_one_packet_each_way_arrives(node: Node) -> None:
    sent = node.check()
    assert results(sent) == ["arrived", "arrived"]
    assert [sent[way]["sent"] for way in sent] == [1, 1]
