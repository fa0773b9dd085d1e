"""A first configuration of a node from what was discovered: complete but for what nobody but its operator knows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

from slicepilot.configs.loader import locate
from slicepilot.node.config.selectors import UpfSelector
from slicepilot.node.config.traffic import DeviceNames

from .discover import DiscoveredUpf

HEAD = """\
# UPFs of this node, as `slicepilot node discover` found them. What only you know is marked FILL IN: promises and
# weights. `slicepilot node check FILE` says what can be measured and moved; `slicepilot run --node FILE` watches, and
# moves nothing until you ask for it (--mode live). docs/node.md lists the fields.
"""
UNKNOWN_UPLINK = (
    "# uplink_mbps: 1000   # FILL IN the rate of the N6 uplink that the slices share, where it can be short"
)
SLICE = """\
  - name: {name}
    s_nssai: {{sst: 1, sd: "{number:06X}"}}   # FILL IN: what the core calls this slice
    sla: {{committed_mbps: 1, delay_bound_ms: 100}}   # FILL IN: what it is promised
    weight: 1   # FILL IN: how much its promise counts beside the others'
    upf: {upf}
    devices: {devices}
"""
OWN_GROUP = """\
    # own_cgroup: true   # it has no CPU cgroup of its own; with this `--mode live` moves it into one, and back later
"""


def draft(name: str, result: Sequence[DiscoveredUpf]) -> str:
    """YAML text: sure UPFs as slices, unclear ones as comments with what is unclear."""
    sure = [item for item in result if item.confidence == "sure"]
    parts = [HEAD, f"name: {name}", UNKNOWN_UPLINK, "slices:" if sure else "slices: []   # FILL IN: no UPF was found"]
    n3s = [(item.process.netns, item.devices.n3) for item in sure]
    for number, item in enumerate(sure, 1):
        parts += [f"  # {line}" for line in _evidence(item)]
        parts.append(_slice(number, item).rstrip("\n"))
        if n3s.count((item.process.netns, item.devices.n3)) > 1:
            parts.append(_traffic(item))
    for number, item in enumerate((item for item in result if item.confidence != "sure"), len(sure) + 1):
        parts += ["  #", f"  # Not sure: process {item.process}. To take it as a slice, take the # away."]
        parts += [f"  #   {line}" for line in _evidence(item)]
        parts += [f"  #{line}" for line in _slice(number, item).rstrip("\n").splitlines()]
    return "\n".join(parts) + "\n"


def marks_left(name_or_path: str) -> bool:
    """Whether a promise or an S-NSSAI of a node's configuration is still marked as not filled in."""
    lines = map(str.strip, locate("nodes", name_or_path).read_text(errors="replace").splitlines())
    return any(line.startswith(("s_nssai:", "sla:")) and "# FILL IN" in line for line in lines)


def _evidence(item: DiscoveredUpf) -> Iterator[str]:
    yield f"{item.process}: {item.why[0]}" if item.why else str(item.process)
    yield from item.why[1:]


def _slice(number: int, item: DiscoveredUpf) -> str:
    # Far ends are found again as the other ends of n3 and n6; a runtime calls them differently in the next container.
    devices = dataclasses.replace(item.devices, n3_far=None, n6_far=None)
    text = SLICE.format(number=number, name=item.name, upf=_flow(item.selector), devices=_flow(devices))
    return text if item.cgroup is not None and not item.others else text + OWN_GROUP


def _traffic(item: DiscoveredUpf) -> str:
    """Which packets are its own, where another UPF has the same N3."""
    if item.ue_pools:
        return f"    traffic: {json.dumps({'ue_pools': item.ue_pools})}"
    return "    # traffic: {ue_pools: [10.45.0.0/16]}   # FILL IN the addresses of its UEs: another UPF has the same N3"


def _flow(value: UpfSelector | DeviceNames) -> str:
    """In YAML's flow style, which JSON is part of; what is not given is left out."""
    return json.dumps(_given(dataclasses.asdict(value)))


def _given(value: dict[str, object]) -> dict[str, object]:
    return {
        key: _given(entry) if isinstance(entry, dict) else entry
        for key, entry in value.items()
        if entry is not None and entry != ()
    }
