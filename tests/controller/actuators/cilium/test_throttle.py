"""Reading and changing Cilium's map of rates: its layouts, refusals, and what a change leaves as it was."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.actuators.cilium.layout import changed
from slicepilot.controller.actuators.cilium.throttle import ThrottleMap
from slicepilot.controller.system.bpf.pinned import NotRootsError, PinnedMap
from slicepilot.controller.system.kernel_file import ActuatorError

from .machine import (
    DIRECTION,
    ENDPOINT,
    LARGER,
    MOVED,
    OTHER_FLAGS,
    PLAIN,
    PRIORITY,
    UNNAMED,
    Agent,
    map_of,
    typed_map,
    untyped_map,
    value_of,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF maps")


@contextlib.contextmanager
def pinned(agent: Agent, objects: Path, layout: int) -> Iterator[None]:
    with contextlib.closing(typed_map(layout, objects)) as made:
        agent.pin(map_of(made).fd)
        yield


@pytest.mark.parametrize("layout", [PLAIN, PRIORITY, DIRECTION])
def test_each_layout_is_accepted_by_its_types(agent: Agent, objects: Path, layout: int) -> None:
    with pinned(agent, objects, layout):
        agent.write(ENDPOINT, value_of(1_250_000, 7, 2_000_000_000, prio=9 if layout else 0))
        with contextlib.closing(ThrottleMap(agent.paths.pin)) as throttle:
            assert throttle.typed
            entry = throttle.entry(ENDPOINT)
            assert entry is not None
            assert (entry.bytes_per_s, entry.last_ns, entry.horizon_ns) == (1_250_000, 7, 2_000_000_000)
            assert throttle.entry(ENDPOINT + 1) is None


def test_a_map_without_types_is_taken_by_what_it_is(agent: Agent) -> None:
    descriptor = untyped_map()
    agent.pin(descriptor)
    agent.write(ENDPOINT, value_of(1_250_000))
    with contextlib.closing(ThrottleMap(agent.paths.pin)) as throttle:
        assert not throttle.typed
        entry = throttle.entry(ENDPOINT)
        assert entry is not None
        assert entry.bytes_per_s == 1_250_000
    os.close(descriptor)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (MOVED, r"value\.bps = 8 bytes at 8; expected a number of 8 bytes at 0"),
        (UNNAMED, r"value\.bps: not in rate, t_last, t_horizon_drop, pad; expected"),
        (LARGER, "value size = 64; expected 56"),
        (OTHER_FLAGS, "flags = 0; expected 1"),
        ({"key_bytes": 4}, "key size = 4; expected 8"),
        ({"value_bytes": 48}, "value size = 48; expected 56"),
        ({"name": "cilium_lxc"}, "name = cilium_lxc; expected cilium_throttle"),
        ({"kind": 9, "flags": 0}, "type = 9; expected 1"),  # least recently used
    ],
)
def test_a_map_that_no_version_has_is_refused(
    agent: Agent, objects: Path, wrong: int | dict[str, Any], message: str
) -> None:
    with contextlib.ExitStack() as undo:
        if isinstance(wrong, int):
            undo.enter_context(pinned(agent, objects, wrong))
        else:
            descriptor = untyped_map(**wrong)
            undo.callback(os.close, descriptor)
            agent.pin(descriptor)
        with pytest.raises(ActuatorError, match=message) as raised:
            ThrottleMap(agent.paths.pin)
    assert "\n" not in str(raised.value)
    assert not raised.value.vanished


def test_a_program_instead_is_refused(agent: Agent, objects: Path) -> None:
    with contextlib.closing(typed_map(DIRECTION, objects)) as made:
        agent.pin(made.program("to_netdev").fd)
        with pytest.raises(ActuatorError, match=r"cilium_throttle.*expected"):
            ThrottleMap(agent.paths.pin)


def test_what_others_can_put_there_is_not_opened(agent: Agent) -> None:
    descriptor = untyped_map()
    agent.pin(descriptor)
    position = agent.paths.pin
    for change, undo, message in (
        (lambda: os.chown(position, 1000, 0), lambda: os.chown(position, 0, 0), "is user 1000's; expected root's"),
        (
            lambda: os.chown(position.parent, 1000, 0),
            lambda: os.chown(position.parent, 0, 0),
            r"globals is user 1000's",
        ),
        (lambda: position.chmod(0o622), lambda: position.chmod(0o600), "can be changed by others"),
        (lambda: position.parent.chmod(0o777), lambda: position.parent.chmod(0o700), "can be changed by others"),
    ):
        change()
        with pytest.raises(ActuatorError, match=message):
            ThrottleMap(position)
        undo()
        ThrottleMap(position).close()
    position.parent.chmod(0o1777)  # as bpffs is by default: what is root's stays
    ThrottleMap(position).close()
    link = agent.paths.state / "throttle"
    link.symlink_to(position)
    with pytest.raises(ActuatorError, match="is a link"):
        ThrottleMap(link)
    with pytest.raises(NotRootsError, match="absolute"):
        PinnedMap.open(Path("cilium_throttle"))
    os.close(descriptor)


@given(st.binary(min_size=56, max_size=56), st.integers(0, 2**64 - 1), st.none() | st.integers(0, 2**64 - 1))
def test_a_change_leaves_every_other_byte(value: bytes, rate: int, horizon_ns: int | None) -> None:
    fresh = changed(value, rate, horizon_ns)
    assert struct.unpack_from("<Q", fresh)[0] == rate
    assert fresh[8:16] == value[8:16], "the program's own"
    assert fresh[16:24] == (value[16:24] if horizon_ns is None else struct.pack("<Q", horizon_ns))
    assert fresh[24:] == value[24:], "priority and what may come"
