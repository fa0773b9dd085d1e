"""A SliceSet as a value: what its schema cannot say is checked here, by the types that a node's configuration has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slicepilot.agents.heuristics.registry import EXPLORING, UNLISTED
from slicepilot.agents.heuristics.registry import available as agents_by_name
from slicepilot.agents.learned.shipped import GENERALIST
from slicepilot.configs import ConfigError, available, did_you_mean, validate
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.node.config.spec import CheckedNodeSpec

from .labels import LabelSelector, selector_of
from .names import camel, instance, snake
from .wanted import Wanted, bundle_wanted, rules_wanted

OURS = ("podSelector", "container", "follow")
"""Fields of a slice that a node's configuration does not have."""
DESCRIBED = (
    "name",
    "sNssai",
    "dnn",
    "promise",
    "weight",
    "bounds",
    "leave",
    "devices",
    "traffic",
    "upfThreads",
    "mayExceedLimit",
    "egressBy",
)
"""Those that it has. Of others nobody knows whether whoever writes SliceSets may choose them."""
RANGES = ("cpuLimitMcpu", "egressMbps")


@dataclass(frozen=True)
class Follow:
    """What the API server is told of a slice's knobs.

    Attributes:
        cpu_limit_mcpu: its container's limit follows by resizes inside this range, which is the loop's as well.
        egress_mbps: its pod's annotation for the egress bandwidth does.
        priority: its pod's annotation of Cilium's priority.
        reassert: what others set there is set again, a few times; else it is left to them at once.
        every_s: from one change of a pod to the next, at least.
    """

    cpu_limit_mcpu: tuple[float, float] | None = None
    egress_mbps: tuple[float, float] | None = None
    priority: str | None = None
    reassert: bool = False
    every_s: float = 2.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Follow:
        """From the API's JSON."""
        spans = {snake(key): (float(one["low"]), float(one["high"])) for key, one in document.items() if key in RANGES}
        return cls(
            **spans,
            priority=document.get("priority"),
            reassert=document.get("conflicts", "Yield") == "Reassert",
            every_s=max(2.0, float(document.get("everySeconds", 2))),
        )


@dataclass(frozen=True)
class DeclaredSlice:
    """A slice: its pods, and all that a node's configuration says of it beside its UPF."""

    name: str
    pods: LabelSelector
    container: str | None
    described: Mapping[str, Any]
    follow: Follow | None = None

    @property
    def shares(self) -> bool:
        """Whether it says which packets of a pod are its own."""
        return "traffic" in self.described


@dataclass(frozen=True)
class DeclaredSet:
    """What somebody has declared.

    Attributes:
        age: sorts the older ones first, and no two alike.
        node_labels: that a node has to have.
        policy: who decides, as a run's configuration has it; empty where that is fetched.
        guard: its rules by name; not looked at where they are fetched.
        bundle_from, rules_from: what it refers to, which has to be fetched first; None: nothing.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    age: tuple[str, str, str]
    node_labels: Mapping[str, str]
    mode: str
    canary: tuple[str, ...]
    policy: Mapping[str, str]
    guard: str
    period_ms: float
    uplink_mbps: float | None
    slices: tuple[DeclaredSlice, ...]
    bundle_from: Wanted | None = None
    rules_from: Wanted | None = None

    @property
    def instance(self) -> str:
        """Of its loop."""
        return instance(self.namespace, self.name)

    def concerns(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is meant."""
        return all(labels.get(key) == value for key, value in self.node_labels.items())

    def node_document(self, placed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """A node's configuration with the slices that are named, in order, and their own fields."""
        slices = [{**one.described, **placed[one.name]} for one in self.slices if one.name in placed]
        uplink = {} if self.uplink_mbps is None else {"uplink_mbps": self.uplink_mbps}
        return {"name": self.instance, **uplink, "slices": slices}


@dataclass(frozen=True)
class Identity:
    """Which SliceSet an object is, whatever else is wrong with it."""

    name: str
    namespace: str
    uid: str
    generation: int

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Identity:
        """From the API's JSON."""
        meta = document["metadata"]
        return cls(meta["name"], meta["namespace"], meta["uid"], int(meta.get("generation", 1)))


def declared(document: Mapping[str, Any]) -> DeclaredSet:
    """From the API's JSON.

    Raises:
        ConfigError: what no loop could run with; one line, with the field as the SliceSet calls it.
    """
    meta, spec = document["metadata"], document["spec"]
    who = Identity.of(document)
    policy, bundle_from = _policy(who.namespace, spec.get("policy") or {})
    guard, rules_from = _guard(who.namespace, spec.get("guard") or {})
    found = DeclaredSet(
        name=who.name,
        namespace=who.namespace,
        uid=who.uid,
        generation=who.generation,
        age=(meta.get("creationTimestamp", ""), who.name, who.uid),
        node_labels=dict(spec.get("nodeSelector") or {}),
        mode=spec.get("mode", "shadow"),
        canary=tuple(spec.get("canary") or ()),
        policy=policy,
        guard=guard,
        period_ms=float(spec.get("periodMs", 10)),
        uplink_mbps=spec.get("uplinkMbps"),
        slices=tuple(map(_slice, spec["slices"])),
        bundle_from=bundle_from,
        rules_from=rules_from,
    )
    _check(found)
    return found


def _slice(document: Mapping[str, Any]) -> DeclaredSlice:
    if unknown := document.keys() - {*OURS, *DESCRIBED}:
        raise ConfigError(f"slices.{document['name']}.{min(unknown)}: no such field; accepted: {', '.join(DESCRIBED)}")
    described = {key: value for key, value in document.items() if key not in OURS}
    described["sla"] = described.pop("promise", {})
    described.setdefault("mayExceedLimit", False)
    if "bounds" in described:
        described["bounds"] = {key: [each["low"], each["high"]] for key, each in described["bounds"].items()}
    if "leave" in described:
        described["leave"] = [snake(knob) for knob in described["leave"]]
    follow = Follow.of(document["follow"]) if document.get("follow") else None
    found = _snaked(described)
    if follow is not None and (span := follow.cpu_limit_mcpu) is not None:
        low, high = found.setdefault("bounds", {}).setdefault("cpu_limit_mcpu", [*span])
        if not span[0] <= low <= high <= span[1]:
            raise ConfigError(
                f"slices.{document['name']}.bounds.cpuLimitMcpu = {low:g} to {high:g}; accepted: inside "
                f"follow.cpuLimitMcpu, {span[0]:g} to {span[1]:g}"
            )
        found |= {"ceiling_mcpu": span[1], "may_exceed_limit": True}
    return DeclaredSlice(
        document["name"], selector_of(document["podSelector"]), document.get("container"), found, follow
    )


def _snaked(value: Any) -> Any:
    """With fields as a node's configuration calls them."""
    if isinstance(value, Mapping):
        return {snake(key): _snaked(each) for key, each in value.items()}
    return list(map(_snaked, value)) if isinstance(value, list | tuple) else value


def _policy(namespace: str, document: Mapping[str, Any]) -> tuple[dict[str, str], Wanted | None]:
    """What a run's configuration says of who decides, or what has to be fetched."""
    if "bundle" not in document:
        name = document.get("agent", "queue-greedy")
        known = [*agents_by_name(), *agents_by_name(scaled=True), *UNLISTED]
        if name.removeprefix(EXPLORING) not in known:
            raise ConfigError(f"policy.agent: unknown name {name!r}; {did_you_mean(name, known)}")
        return {"agent": name}, None
    bundle = document["bundle"]
    if "shipped" in bundle:
        if bundle["shipped"] != GENERALIST:  # a path, perhaps
            raise ConfigError(f"policy.bundle.shipped: {bundle['shipped']!r}; accepted: {GENERALIST}")
        return {"bundle": GENERALIST}, None
    return {}, bundle_wanted(namespace, bundle)


def _guard(namespace: str, document: Mapping[str, Any]) -> tuple[str, Wanted | None]:
    if "configMap" in document:
        return "default", rules_wanted(namespace, document["configMap"])
    name, known = document.get("shipped", "default"), available("guard")
    if name not in known:
        raise ConfigError(f"guard.shipped: unknown name {name!r}; {did_you_mean(name, known)}")
    return name, None


def _check(found: DeclaredSet) -> None:
    """By the types that a loop would read it by; every slice as if it had a pod."""
    places = {one.name: {"upf": {"pod": {"name": "any"}}} for one in found.slices}
    run = {"node": "any", "mode": found.mode, "canary": list(found.canary), "guard": found.guard} | dict(found.policy)
    try:
        validate(CheckedNodeSpec, found.node_document(places), "spec")
        validate(RunConfig, run | {"period_ms": found.period_ms}, "spec")
    except ConfigError as error:
        raise ConfigError(camel(str(error))) from error
