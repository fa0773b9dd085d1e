"""Several slices in one UPF: measured and shaped apart, with CPU knobs that they share."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.node import NodeActuator
from slicepilot.controller.actuators.shared_cpu import SharedCpu, whole
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.envelope import declare
from slicepilot.controller.guard.records import State
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE, Knobs

from .foreign import Foreign, opened, written
from .runtimes import until
from .test_foreign import controller, knobs, slicepilot


@pytest.fixture(scope="module", name="node")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """Two UPFs with two sessions each."""
    with Foreign(tmp_path_factory.mktemp("shared"), count=2, sessions=2) as node:
        yield node


def slice_of(node: Foreign, name: str, upf: int, **traffic: Any) -> dict[str, Any]:
    return node.slice(name, ord(name), upf, weight=10 if name == "a" else 1, **traffic)


DISTINGUISHED_BY = {
    "pool": ({"ue_pools": ["10.61.1.2/32"]}, {"ue_pools": ["10.61.1.3/32"]}),
    "longest prefix": ({"ue_pools": ["10.61.1.0/24"]}, {"ue_pools": ["10.61.1.3/32"]}),
    "tunnel": ({"teids": [1]}, {"teids": [101]}),
    "tunnel before pool": ({"teids": [1], "ue_pools": ["10.61.1.3/32"]}, {"teids": [101]}),
    "QoS flow": ({"ue_pools": ["10.61.1.0/24"], "qfis": [9]}, {"ue_pools": ["10.61.1.0/24"], "qfis": [7, 8]}),
}


@pytest.mark.parametrize("traffic", DISTINGUISHED_BY.values(), ids=DISTINGUISHED_BY)
def test_slices_of_a_upf_are_distinguished(node: Foreign, tmp_path: Path, traffic: tuple[dict[str, Any], ...]) -> None:
    """One is shaped to a quarter of what it sends: only it carries less, and only its packets wait."""
    slices = [slice_of(node, name, 1, **own) for name, own in zip("ab", traffic, strict=True)]
    node.load(seconds=8, mbps=8)
    with (
        closing(opened(written(tmp_path, node.prefix, *slices))) as backend,
        closing(NodeActuator(backend.targets)) as actuator,
    ):
        wanted = Knobs.none(2)
        wanted.values[EGRESS, 1, 0] = 2.0
        actuator.apply(wanted)
        for _ in range(60):
            backend.observe()
        figures = np.mean([backend.observe().slices[:, :, 0].copy() for _ in range(60)], axis=0)
        offered, carried, _, p99 = figures[:4]
        assert offered == pytest.approx([8, 8], rel=0.1)
        assert carried[0] == pytest.approx(8, rel=0.1)
        assert carried[1] == pytest.approx(2, rel=0.15)
        assert p99[1] > 20 * p99[0]
    node.stop_loads()


def test_packets_of_neither_are_nobodys(node: Foreign, tmp_path: Path) -> None:
    slices = [slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[999])]
    node.load(seconds=8, mbps=8)
    with closing(opened(written(tmp_path, node.prefix, *slices))) as backend:
        for _ in range(50):
            backend.observe()
        packets = backend.source.packets.slices["n3"]["packets"]
        assert packets[0] > 500
        assert packets[1] == 0
        assert packets[2] > 500  # behind the last slice
    node.stop_loads()


def test_cpu_time_is_charged_by_packets(node: Foreign, tmp_path: Path) -> None:
    slices = [slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[101]), slice_of(node, "c", 2)]
    node.load(seconds=8, mbps=8)
    with closing(opened(written(tmp_path, node.prefix, *slices))) as backend:
        assert backend.context.sharing == ((0, 1),)
        for _ in range(20):
            backend.observe()
        use = np.mean([backend.observe().cpu_use_mcpu[:, 0].copy() for _ in range(80)], axis=0)
        assert use[0] == pytest.approx(use[1], rel=0.1)
        assert use[0] + use[1] == pytest.approx(use[2], rel=0.35)  # which carries as much as both
    node.stop_loads()


def test_the_process_gets_what_its_slices_ask_for_together(node: Foreign, tmp_path: Path) -> None:
    slices = [slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[101]), slice_of(node, "c", 2)]
    before = knobs(node)
    with (
        closing(opened(written(tmp_path, node.prefix, *slices))) as backend,
        closing(NodeActuator(backend.targets)) as actuator,
    ):
        wanted = Knobs.none(3)
        wanted.values[CPU_LIMIT, :, 0] = 300, 150, 200
        wanted.values[NICE, :, 0] = -5, -5, 3
        assert actuator.apply(wanted).applied.same_as(wanted)
        held = actuator.read()
        assert held.values[CPU_LIMIT, :, 0].tolist() == pytest.approx([300, 150, 200])
        group = backend.targets[0].group
        quota = group / "cpu.max"
        assert int((quota if quota.exists() else group / "cpu.cfs_quota_us").read_text().split()[0]) in {45_000, 4_500}
        # One of them without a limit: nobody in the process has a limit, and the receipt says so.
        wanted.values[CPU_LIMIT, 1, 0] = np.inf
        assert actuator.apply(wanted).applied.values[CPU_LIMIT, :, 0].tolist() == [np.inf, np.inf, 200]
    assert knobs(node) == before


def test_sigkill_restores_what_slices_share(node: Foreign, tmp_path: Path) -> None:
    slices = [slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[101]), slice_of(node, "c", 2)]
    path, before = written(tmp_path, node.prefix, *slices), knobs(node)
    with controller(path, node, tmp_path) as running:
        until(lambda: knobs(node)["1/n6"] != before["1/n6"], "nothing was shaped")
        running.process.kill()
        assert until(lambda: knobs(node) == before, "not restored") < 0.5


def test_check_says_what_is_shared(node: Foreign, tmp_path: Path) -> None:
    path = written(tmp_path, node.prefix, slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[101]))
    node.load(seconds=10, mbps=8)
    result = json.loads(slicepilot("node", "check", str(path), "--seconds", "2", "--json").stdout)
    node.stop_loads()
    for item, other in zip(result, "ba", strict=True):
        assert item["measured"]
        assert item["traffic"]["match_ratio"] > 0.99
        assert item["traffic"]["cpu_us_per_packet"] > 1.0
        assert all(knob["authority"] for knob in item["knobs"].values())
        assert any(f"one UPF with {other}" in note for note in item["notes"])


def test_what_one_leaves_alone_of_their_process_all_do(node: Foreign, tmp_path: Path) -> None:
    slices = [slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[101]) | {"leave": ["cpu_limit_mcpu"]}]
    with closing(opened(written(tmp_path, node.prefix, *slices))) as backend:
        assert [sorted(target.fixed) for target in backend.targets] == [["cpu_limit_mcpu"]] * 2
        assert backend.context.moves is not None
        assert not backend.context.moves[CPU_LIMIT].any()
        assert backend.context.moves[NICE].all()


def test_who_shares_has_to_say_what_is_whose(node: Foreign, tmp_path: Path) -> None:
    def error_of(*slices: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as caught:
            opened(written(tmp_path, node.prefix, *slices)).close()
        return str(caught.value)

    first = slice_of(node, "a", 1, teids=[1])
    assert "slices.b: its N3 is also that of a; expected traffic.ue_pools or" in error_of(first, slice_of(node, "b", 1))
    assert "TEID 0x1 belongs to both" in error_of(first, slice_of(node, "b", 1, teids=[1]))
    both = [slice_of(node, name, 1, ue_pools=["10.61.1.0/24"], qfis=[9]) for name in "ab"]
    assert "pool 10.61.1.0/24 belongs to both" in error_of(*both)
    assert "expected a network such as 10.45.0.0/16" in error_of(slice_of(node, "a", 1, ue_pools=["10.61.1.2/24"]))
    assert "longer than what a UE owns" in error_of(slice_of(node, "a", 1, ue_pools=["2001:db8::/65"]))
    assert "nothing says whose packets they are" in error_of(slice_of(node, "a", 1, qfis=[3]))


def targets(*sharing: tuple[str, ...]) -> list[SliceTargets]:
    return [
        SliceTargets(name, Path("/nowhere") if name == names[0] else None, sharing=names if len(names) > 1 else ())
        for names in sharing
        for name in names
    ]


def test_parts_of_a_process_are_joined_and_parted() -> None:
    shared = SharedCpu(targets(("a", "b", "c"), ("d",)))
    wanted = Knobs.none(4).values
    wanted[CPU_LIMIT, :, 0], wanted[NICE, :, 0] = (100, 200, 300, 50), (0, 0, 0, 7)
    limits, nices = wanted[CPU_LIMIT, :, 0].tolist(), wanted[NICE, :, 0].tolist()
    shared.join(limits, nices)
    assert (limits, nices) == ([600, np.inf, np.inf, 50], [0, 0, 0, 7])
    held = np.zeros_like(wanted)
    held[CPU_LIMIT, :, 0], held[NICE, :, 0] = (300, np.inf, np.inf, 50), (-4, 0, 0, 7)  # somebody has halved it
    shared.part(held, wanted)
    assert held[CPU_LIMIT, :, 0].tolist() == [50, 100, 150, 50]
    assert held[NICE, :, 0].tolist() == [-4, -4, -4, 7]


def test_a_canary_does_not_move_what_others_would_feel() -> None:
    first, second = whole(targets(("a", "b"))[:1] + targets(("d",)))
    assert first.fixed >= {"cpu_limit_mcpu", "nice"}
    assert not second.left
    assert not whole(targets(("a", "b")))[0].left


def test_the_guard_takes_a_shared_group_for_one(node: Foreign, tmp_path: Path) -> None:
    slices = [slice_of(node, "a", 1, teids=[1]), slice_of(node, "b", 1, teids=[101]), slice_of(node, "c", 2)]
    with closing(opened(written(tmp_path, node.prefix, *slices))) as backend:
        state = State.new(len(slices), 1, 1)
        declare(state, GuardConfig(), backend.slices, backend.context, "group", None)
    weight = state.slices["weight"]
    assert weight[0] + weight[1] == weight[2]
