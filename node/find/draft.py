"""A first configuration of a node from the UPFs that were discovered, with marks for the operator to fill in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Sequence
from ipaddress import ip_network
from itertools import zip_longest

from slicepilot.configs.loader import locate
from slicepilot.node.config.selectors import UpfSelector
from slicepilot.node.config.traffic import DeviceNames

from .discover import DiscoveredUpf

HEAD = """\
# UPFs of this node, from `slicepilot node discover`. Fill in what is marked FILL IN: promises and weights.
# `slicepilot node check FILE` shows what can be measured and moved; `slicepilot run --node FILE` only observes, unless
# you give --mode live. docs/node.md lists the fields.
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
    # own_cgroup: true   # it has no CPU cgroup of its own; with this `--mode live` makes one for it, until it ends
"""

NONE = "slices: []   # FILL IN: no UPF was found that is certain and nobody else's"


def draft(name: str, result: Sequence[DiscoveredUpf], named: Collection[int] = ()) -> str:
    """YAML text: sure UPFs as slices, a slice for each network of UEs or TUN device; unclear UPFs, and UPFs that belong
    to another controller, testbed or pod, as comments.

    Args:
        name: of the node.
        result: what was discovered.
        named: pids of UPFs that the user has selected: these are slices even if they belong to others.
    """
    sure = [item for item in result if item.confidence == "sure" and (not item.owner or item.process.pid in named)]
    parts = [HEAD, f"name: {name}", UNKNOWN_UPLINK, "slices:" if sure else NONE]
    n3s = [(item.process.netns, item.devices.n3) for item in sure]
    number = 0
    for item in sure:
        parts += [f"  # {line}" for line in _evidence(item)]
        alone = n3s.count((item.process.netns, item.devices.n3)) == 1
        for entry in _slices(item):
            number += 1
            parts.append(_slice(number, entry).rstrip("\n"))
            if not alone or entry is not item:
                parts.append(_traffic(entry))
    rest = [item for item in result if item not in sure]
    for number_of_rest, item in enumerate(rest, number + 1):
        why = "Not sure" if item.confidence != "sure" else f"Another's, {item.owner}"
        parts += ["  #", f"  # {why}: process {item.process}. To take it as a slice, take the # away."]
        parts += [f"  #   {line}" for line in _evidence(item)]
        parts += [f"  #{line}" for line in _slice(number_of_rest, item).rstrip("\n").splitlines()]
    return "\n".join(parts) + "\n"


def _slices(item: DiscoveredUpf) -> list[DiscoveredUpf]:
    """The slices of a UPF: a slice for each network of UEs that is routed to one of its TUN devices, with the IPv4 and
    IPv6 networks paired; the UPF itself if there is only one."""
    result: list[DiscoveredUpf] = []
    for tun, pools in item.served:
        families = [[pool for pool in pools if ip_network(pool).version == version] for version in (4, 6)]
        for group in zip_longest(*families):
            own = tuple(pool for pool in group if pool is not None)
            devices = dataclasses.replace(item.devices, tun=tun)
            name = f"{item.name}-{len(result) + 1}"
            result.append(dataclasses.replace(item, name=name, devices=devices, ue_pools=own))
    return result if len(result) > 1 else [item]


def marks_left(name_or_path: str) -> list[str]:
    """Fields of a node's configuration that are still marked as not filled in: S-NSSAIs and promises."""
    lines = map(str.strip, locate("nodes", name_or_path).read_text(errors="replace").splitlines())
    marked = [line.partition(":")[0] for line in lines if "# FILL IN" in line]
    return [field for field in ("s_nssai", "sla") if field in marked]


def _evidence(item: DiscoveredUpf) -> Iterator[str]:
    yield f"{item.process}: {item.why[0]}" if item.why else str(item.process)
    yield from item.why[1:]


def _slice(number: int, item: DiscoveredUpf) -> str:
    # Far ends follow from n3 and n6; a runtime gives them other names in the next container.
    devices = dataclasses.replace(item.devices, n3_far=None, n6_far=None)
    text = SLICE.format(number=number, name=item.name, upf=_flow(item.selector), devices=_flow(devices))
    return text if item.cgroup is not None and not item.others else text + OWN_GROUP


def _traffic(item: DiscoveredUpf) -> str:
    """Which packets are its own, where other slices have the same N3."""
    if item.ue_pools:
        return f"    traffic: {json.dumps({'ue_pools': item.ue_pools})}"
    return (
        "    # traffic: {ue_pools: [10.45.0.0/16]}   # FILL IN the addresses of its UEs: other slices have the same N3"
    )


def _flow(value: UpfSelector | DeviceNames) -> str:
    """A value in YAML's flow style, of which JSON is a part; fields that are not given are left out."""
    return json.dumps(_given(dataclasses.asdict(value)))


def _given(value: dict[str, object]) -> dict[str, object]:
    return {
        key: _given(entry) if isinstance(entry, dict) else entry
        for key, entry in value.items()
        if entry is not None and entry != ()
    }
