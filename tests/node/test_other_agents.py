"""Another agent of the node attaches its own program before the probe's while UPFs are controlled: a probe that sees
nothing starves nobody.

What such agents do: netobserv-ebpf-agent#822, aws-network-policy-agent#480, cilium#41393.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.system.net.namespaces import path_of
from slicepilot.controller.telemetry.attachments import MOST_TRIES
from slicepilot.testbed.bench.rig import Controller
from tests.controller.other_programs import PASS, attached, detach, links

from .foreign import Foreign
from .runtimes import until
from .test_foreign import controller, measured

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces"),
]
LOAD_S = 40
NOTICED_S = 1.0


@pytest.fixture(name="running")
def _running(foreign: Foreign, node: Path, tmp_path: Path) -> Iterator[Controller]:
    with controller(node, foreign, tmp_path, agent="queue-greedy") as running:
        foreign.load(seconds=LOAD_S, mbps=4)
        until(lambda: all(measured(running, number) for number in range(1, foreign.count + 1)), "not measured")
        yield running
    foreign.stop_loads()


def where(foreign: Foreign, point: str) -> tuple[Path, str]:
    """Namespace and device of the first slice's point."""
    return path_of(f"{foreign.prefix}-dn" if point == "n6" else foreign.netns[0]), "n6-1" if point == "n6" else "n3"


def ticks(running: Controller) -> Any:
    """All that the ring has."""
    with closing(running.reader()) as reader:
        return reader.last(1_000_000)


def taken(running: Controller) -> int:
    return int(running.notes()["counts"]["hooks_taken"])


def said(running: Controller) -> int:
    """How often it is logged that the slice is not measured for good, or again."""
    return running.log.read_text().count("left as it is for now")


def never_starved(records: Any) -> bool:
    """Whether no service floor of the first slice was said to be broken in the last three seconds."""
    return not (records["reasons"][-300:, 0] & Reason.SLA_FLOOR.bit).any()


@pytest.mark.parametrize("point", ["n6", "n3"])
def test_a_program_at_the_head_is_put_behind_ours(foreign: Foreign, running: Controller, point: str) -> None:
    with attached(*where(foreign, point), "ingress", PASS, name="cil_from_contai"):
        took_s = until(lambda: taken(running) == 1, "not noticed", 5.0)
        time.sleep(1.0)
        assert measured(running, 1)
        records = ticks(running)
    print(f"\n{point}: noticed and said within {took_s:.2f} s")
    assert took_s < NOTICED_S + 1.0  # what is noticed at once is published once a second
    # Until ours is attached again, which the kernel delays (synchronize_rcu): less than the guard goes on without.
    unmeasured = (records["valid"][:, 0] == 0).nonzero()[0]
    assert len(unmeasured) in range(1, 25), "windows that are not believed"
    assert unmeasured[-1] - unmeasured[0] < 25
    assert (records["valid"][:, 1:5] != 0).all()
    held = records[records["valid"][:, 0] == 0]
    assert (held["reasons"][:, 0] & Reason.SLICE_MISSING.bit != 0).all()
    assert never_starved(records)
    until(lambda: "cil_from_contai" in running.log.read_text(), "not logged", 3.0)


def test_two_that_both_want_to_be_first(foreign: Foreign, running: Controller) -> None:
    with contextlib.ExitStack() as others:
        for turn in range(MOST_TRIES + 1):
            others.enter_context(attached(*where(foreign, "n6"), "ingress", PASS))
            until(lambda turn=turn: taken(running) == turn + 1, "not noticed", 5.0)
        until(lambda: not measured(running, 1), "taken for measured", 3.0)
        before = links(*where(foreign, "n6"), "ingress")
        time.sleep(3.0)
        assert said(running) == 1
        assert links(*where(foreign, "n6"), "ingress") == before
        assert not measured(running, 1)
        assert taken(running) == MOST_TRIES + 1
        assert [line for line in running.notes()["unmeasured"] if "left as it is for now" in line]
        last = ticks(running)[-200:]
        assert (last["reasons"][:, 0] & Reason.SLICE_MISSING.bit != 0).all()
        starved = last["reasons"][:, 0] & Reason.SLA_FLOOR.bit
        assert (starved <= starved[0]).all(), "this machine may have starved it before; its probe must not"
        moved = last["applied"][:, :, 0]
        assert (moved == moved[0]).all(), "no knob moves on what was not measured"
    until(lambda: measured(running, 1), "not measured again", 5.0)
    until(lambda: said(running) == 2, "that it is over is not logged", 3.0)


def test_ours_detached_by_force(foreign: Foreign, running: Controller) -> None:
    detach(links(*where(foreign, "n6"), "ingress")[0])
    until(lambda: taken(running) == 1, "not noticed", 5.0)
    until(lambda: measured(running, 1), "not measured again", 3.0)
    assert never_starved(ticks(running))
