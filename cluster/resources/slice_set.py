"""A SliceSet as a value, checked beyond its schema by the types of a node's configuration."""

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
"""Fields of a slice that are not in a node's configuration."""
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
"""Fields of a slice that are passed on to it. Authors of SliceSets may not choose others."""
RANGES = ("cpuLimitMcpu", "egressMbps")


@dataclass(frozen=True)
class Follow:
    """How a slice's pod follows the knobs of its loop.

    Attributes:
        cpu_limit_mcpu: range of the container's limit, and of the loop's; followed by resizes.
        egress_mbps: range of the annotation for the egress bandwidth, and of the loop's rate.
        priority: value of Cilium's annotation.
        reassert: whether values of other managers are replaced, a few times, or left to them at once.
        every_s: least time between two changes of a pod.
    """

    cpu_limit_mcpu: tuple[float, float] | None = None
    egress_mbps: tuple[float, float] | None = None
    priority: str | None = None
    reassert: bool = False
    every_s: float = 2.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Follow:
        spans = {
            snake(key): (float(each["low"]), float(each["high"])) for key, each in document.items() if key in RANGES
        }
        return cls(
            **spans,
            priority=document.get("priority"),
            reassert=document.get("conflicts", "Yield") == "Reassert",
            every_s=max(2.0, float(document.get("everySeconds", 2))),
        )


@dataclass(frozen=True)
class DeclaredSlice:
    """A slice: its pods, and its part of a node's configuration without the UPF."""

    name: str
    pods: LabelSelector
    container: str | None
    described: Mapping[str, Any]
    follow: Follow | None = None

    @property
    def shares(self) -> bool:
        """Whether it declares which packets of a pod are its own."""
        return "traffic" in self.described


@dataclass(frozen=True)
class DeclaredSet:
    """A SliceSet.

    Attributes:
        age: sort key, unique, older first.
        node_labels: that a node has to have.
        policy: the policy's settings in a run's configuration; empty where it is fetched.
        guard: name of the guard rules; unused where they are fetched.
        bundle_from, rules_from: references that have to be fetched first; None: none.
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
        return instance(self.namespace, self.name)

    def concerns(self, labels: Mapping[str, str]) -> bool:
        """Whether it is meant for a node with these labels."""
        return all(labels.get(key) == value for key, value in self.node_labels.items())

    def node_document(self, placed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """A node's configuration with the named slices, in order, and these fields of theirs."""
        slices = [{**item.described, **placed[item.name]} for item in self.slices if item.name in placed]
        uplink = {} if self.uplink_mbps is None else {"uplink_mbps": self.uplink_mbps}
        return {"name": self.instance, **uplink, "slices": slices}


@dataclass(frozen=True)
class Identity:
    """Identifies a SliceSet, valid or not."""

    name: str
    namespace: str
    uid: str
    generation: int

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Identity:
        meta = document["metadata"]
        return cls(meta["name"], meta["namespace"], meta["uid"], int(meta.get("generation", 1)))


def declared(document: Mapping[str, Any]) -> DeclaredSet:
    """A SliceSet from the API's JSON.

    Raises:
        ConfigError: no loop could run with it; one line, with the field as in the SliceSet.
    """
    meta, spec = document["metadata"], document["spec"]
    identity = Identity.of(document)
    policy, bundle_from = _policy(identity.namespace, spec.get("policy") or {})
    guard, rules_from = _guard(identity.namespace, spec.get("guard") or {})
    declared_set = DeclaredSet(
        name=identity.name,
        namespace=identity.namespace,
        uid=identity.uid,
        generation=identity.generation,
        age=(meta.get("creationTimestamp", ""), identity.name, identity.uid),
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
    _check(declared_set)
    return declared_set


def _slice(document: Mapping[str, Any]) -> DeclaredSlice:
    if unknown := document.keys() - {*OURS, *DESCRIBED}:
        raise ConfigError(
            f"slices.{document['name']}.{min(unknown)}: no such field; expected one of {', '.join(DESCRIBED)}"
        )
    described = {key: value for key, value in document.items() if key not in OURS}
    described["sla"] = described.pop("promise", {})
    described.setdefault("mayExceedLimit", False)
    if "bounds" in described:
        described["bounds"] = {key: [each["low"], each["high"]] for key, each in described["bounds"].items()}
    if "leave" in described:
        described["leave"] = [snake(knob) for knob in described["leave"]]
    follow = Follow.of(document["follow"]) if document.get("follow") else None
    fields = _snaked(described)
    if follow is not None:
        for name in RANGES:
            if (span := getattr(follow, snake(name))) is None:
                continue
            low, high = fields.setdefault("bounds", {}).setdefault(snake(name), [*span])
            if not span[0] <= low <= high <= span[1]:
                raise ConfigError(
                    f"slices.{document['name']}.bounds.{name} = {low:g} to {high:g}: expected a range within "
                    f"follow.{name}, {span[0]:g} to {span[1]:g}"
                )
        if follow.cpu_limit_mcpu is not None:
            fields["ceiling_mcpu"] = follow.cpu_limit_mcpu[1]
    return DeclaredSlice(
        document["name"], selector_of(document["podSelector"]), document.get("container"), fields, follow
    )


def _snaked(value: Any) -> Any:
    """The same document with field names of a node's configuration."""
    if isinstance(value, Mapping):
        return {snake(key): _snaked(each) for key, each in value.items()}
    return list(map(_snaked, value)) if isinstance(value, list | tuple) else value


def _policy(namespace: str, document: Mapping[str, Any]) -> tuple[dict[str, str], Wanted | None]:
    """The policy's settings in a run's configuration, or the reference that has to be fetched."""
    if "bundle" not in document:
        name = document.get("agent", "queue-greedy")
        known = [*agents_by_name(), *agents_by_name(scaled=True), *UNLISTED]
        if name.removeprefix(EXPLORING) not in known:
            raise ConfigError(f"policy.agent: unknown name {name!r}; {did_you_mean(name, known)}")
        return {"agent": name}, None
    bundle = document["bundle"]
    if "shipped" in bundle:
        if bundle["shipped"] != GENERALIST:  # a path, perhaps
            raise ConfigError(f"policy.bundle.shipped: {bundle['shipped']!r}: expected {GENERALIST}")
        return {"bundle": GENERALIST}, None
    return {}, bundle_wanted(namespace, bundle)


def _guard(namespace: str, document: Mapping[str, Any]) -> tuple[str, Wanted | None]:
    if "configMap" in document:
        return "default", rules_wanted(namespace, document["configMap"])
    name, known = document.get("shipped", "default"), available("guard")
    if name not in known:
        raise ConfigError(f"guard.shipped: unknown name {name!r}; {did_you_mean(name, known)}")
    return name, None


def _check(declared_set: DeclaredSet) -> None:
    """Check it by the types with which a loop reads it, as if every slice had a pod."""
    locations = {item.name: {"upf": {"pod": {"name": "any"}}} for item in declared_set.slices}
    run = {"node": "any", "mode": declared_set.mode, "canary": list(declared_set.canary), "guard": declared_set.guard}
    try:
        validate(CheckedNodeSpec, declared_set.node_document(locations), "spec")
        validate(RunConfig, run | dict(declared_set.policy) | {"period_ms": declared_set.period_ms}, "spec")
    except ConfigError as error:
        raise ConfigError(camel(str(error))) from error
