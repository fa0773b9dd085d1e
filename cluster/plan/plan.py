"""The loops of this node, planned from the objects of the API server: no request, no file, no process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.resources.slice_set import DeclaredSet, Follow, Identity, declared
from slicepilot.cluster.resources.wanted import FETCHING, NOT_FETCHED, Fetched, Wanted
from slicepilot.configs import ConfigError

from .assignment import Assignment, SlicePod, Trouble, assign_pods

ACTING = ("canary", "live")
MODES = ("shadow", *ACTING)
"""Lowest first."""
RESIZED = {"policy": "reassert", "most_reasserts": 100, "window_s": 60.0, "restore": "newest"}
"""How a loop answers the kubelet, which writes at each resize: those of this agent, 30 a minute at most, and those of
others, whose values are then to be put back."""
MOST_SETS = 64
"""The oldest SliceSets of a namespace that are considered."""


@dataclass(frozen=True)
class LoopPlan:
    """The configuration of one loop.

    Attributes:
        instance: its name on the node.
        node: its node's configuration (`slicepilot.node.config.spec`).
        run: its own (`slicepilot.controller.service.run_config`), without the mode.
        mode, canary: its mode; may be changed while it runs.
    """

    instance: str
    node: Mapping[str, Any]
    run: Mapping[str, Any]
    mode: str
    canary: tuple[str, ...]

    def starts_as(self, other: LoopPlan) -> bool:
        """Whether a loop of the other plan needs no restart."""
        return (self.instance, self.node, self.run) == (other.instance, other.node, other.run)

    def acts_as(self, other: LoopPlan) -> bool:
        return (self.mode, self.canary) == (other.mode, other.canary)


@dataclass(frozen=True)
class Missing:
    """Why a bundle or rules are not here (yet): a reason of conditions, and a line."""

    reason: str
    message: str


@dataclass(frozen=True)
class SetPlan:
    """The plan of a SliceSet on this node.

    Attributes:
        identity: of the SliceSet.
        invalid: why no loop could run with it, in a line.
        missing: why its bundle or rules are not as declared now. A loop that has run goes on with the former bundle or
            rules.
        unpromoted: why its bundle may not act, so that its loop runs in shadow although a higher mode is declared.
        over_limit: why it has no loop although it could: the node's loops are all taken.
        pods: of its slices on this node.
        troubles: of slices with pods here.
        follows: of slices whose pods here follow the loop.
        refused_mode: why the declared mode is not allowed here, so that its loop runs in shadow.
        loop: None where there is nothing to run.
    """

    identity: Identity
    invalid: str | None = None
    missing: Missing | None = None
    unpromoted: str | None = None
    over_limit: str | None = None
    pods: Mapping[str, SlicePod] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    follows: Mapping[str, Follow] = field(default_factory=dict)
    refused_mode: str | None = None
    loop: LoopPlan | None = None


class Planner:
    """Plans again and again, and remembers the slices' pods.

    Args:
        highest_mode: of `MODES`. A SliceSet that asks for a higher mode has its loop in shadow: canary would need names
            of slices, which a SliceSet in live does not have.
        trust: public key with which loops check the signatures of fetched bundles; None: none is required.

    Attributes:
        wanted: references of the SliceSets with pods here, those of older SliceSets first, with these SliceSets by uid
            and generation; as last planned.
    """

    def __init__(self, highest_mode: str = "live", trust: Path | None = None) -> None:
        self._highest, self._trust = highest_mode, trust
        self._before: dict[str, Mapping[str, SlicePod]] = {}
        self._known: dict[tuple[str, int], DeclaredSet | str] = {}
        self._requests: dict[tuple[str, str], float] = {}
        self._had: dict[str, _Sources] = {}
        self.wanted: dict[Wanted, frozenset[tuple[str, int]]] = {}

    @property
    def used(self) -> set[Path]:
        """Paths that loops were last planned with: whatever is declared now, loops may still run with them."""
        texts = [entry.run.get(key) for entry in self._had.values() for key in ("bundle", "guard")]
        return {Path(text) for text in texts if text is not None and text.startswith("/")}

    def plan(
        self,
        documents: Iterable[Mapping[str, Any]],
        pods: Iterable[Pod],
        node_labels: Mapping[str, str],
        now_s: float,
        fetched: Mapping[Wanted, Fetched] = MappingProxyType({}),
    ) -> list[SetPlan]:
        """Plans of the SliceSets that concern this node: invalid SliceSets that might have pods here, then those that
        have pods here, the older first.

        Args:
            documents: all SliceSets, in the API's JSON.
            pods: of this node.
            node_labels: its labels.
            now_s: by the monotonic clock.
            fetched: state of what was `wanted`.
        """
        present = list(pods)
        valid: list[DeclaredSet] = []
        plans: list[SetPlan] = []
        known, self._known = self._known, {}
        away = {item.pod.namespace for assigned in self._before.values() for item in assigned.values()}
        for document in _oldest(documents, away | {pod.namespace for pod in present}):
            identity = Identity.of(document)
            # A spec does not change without its generation, and checking it takes milliseconds.
            checked = known.get((identity.uid, identity.generation)) or _declared(document)
            self._known[identity.uid, identity.generation] = checked
            if isinstance(checked, DeclaredSet):
                valid.append(checked)
            elif _might_concern(document, node_labels, present):
                plans.append(SetPlan(identity, invalid=checked))
        meant = [item for item in valid if item.concerns(node_labels)]
        assigned = assign_pods(meant, present, self._before, now_s)
        self._before = {uid: assignment.pods for uid, assignment in assigned.items() if assignment.pods}
        meant.sort(key=lambda item: item.age)
        here = [item for item in meant if assigned[item.uid].pods or assigned[item.uid].troubles]
        self._remember_requests(item for each in here for item in assigned[each.uid].pods.values())
        self.wanted = _wanted(here)
        had, self._had = self._had, {}
        for item in here:
            sources, missing = _sources(item, fetched, had.get(item.uid), self._trust)
            if sources is not None:
                self._had[item.uid] = sources
            plans.append(_plan(item, assigned[item.uid], self._highest, self._requests, sources, missing))
        return plans

    def _remember_requests(self, pods: Iterable[SlicePod]) -> None:
        """CPU requests of pods as first seen: a resize while a loop runs does not restart it."""
        kept, self._requests = self._requests, {}
        for pod in [item.pod for item in pods]:
            for container in pod.containers:
                key = pod.uid, container.name
                self._requests[key] = kept.get(key, container.cpu_request_mcpu)


@dataclass(frozen=True)
class _Sources:
    """Settings of policy and rules for a loop, and why the policy may not act."""

    run: Mapping[str, Any]
    refusal: str | None = None


def _wanted(sets: Iterable[DeclaredSet]) -> dict[Wanted, frozenset[tuple[str, int]]]:
    wanted: dict[Wanted, frozenset[tuple[str, int]]] = {}
    for item in sets:
        for reference in filter(None, (item.bundle_from, item.rules_from)):
            wanted[reference] = wanted.get(reference, frozenset()) | {(item.uid, item.generation)}
    return wanted


def _sources(
    declared_set: DeclaredSet, fetched: Mapping[Wanted, Fetched], had: _Sources | None, trust: Path | None
) -> tuple[_Sources | None, Missing | None]:
    """The declared sources once all are fetched, until then the former sources; and what is missing."""
    wanted = [each for each in (declared_set.bundle_from, declared_set.rules_from) if each is not None]
    states = {each: fetched.get(each, Fetched()) for each in wanted}
    absent = [each for each in wanted if states[each].path is None]
    problems = [text for each in wanted if (text := states[each].problem) is not None]
    missing = None
    if problems:
        missing = Missing(NOT_FETCHED, "; ".join(problems))
    elif absent:
        missing = Missing(FETCHING, "; ".join(f"{each.field}: being fetched" for each in absent))
    if absent:
        return had, missing
    run: dict[str, Any] = {**declared_set.policy, "guard": declared_set.guard}
    refusal = None
    if declared_set.bundle_from is not None:
        state = states[declared_set.bundle_from]
        run["bundle"], refusal = str(state.path), state.refusal
        if trust is not None:
            run["trust"] = str(trust)
    if declared_set.rules_from is not None:
        run["guard"] = str(states[declared_set.rules_from].path)
    return _Sources(run, refusal), missing


def _oldest(documents: Iterable[Mapping[str, Any]], namespaces: set[str]) -> list[Mapping[str, Any]]:
    """The oldest `MOST_SETS` of each namespace with pods here: thousands of them delay their own namespace only."""
    result: dict[str, list[Mapping[str, Any]]] = {namespace: [] for namespace in namespaces}
    for document in documents:
        of_namespace = result.get(document["metadata"]["namespace"])
        if of_namespace is not None:
            of_namespace.append(document)
    for of_namespace in result.values():
        of_namespace.sort(key=lambda item: (item["metadata"].get("creationTimestamp", ""), item["metadata"]["name"]))
    return [document for of_namespace in result.values() for document in of_namespace[:MOST_SETS]]


def _declared(document: Mapping[str, Any]) -> DeclaredSet | str:
    """The SliceSet, or why no loop could run with it."""
    try:
        return declared(document)
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        # A schema of another version may have let it through.
        return str(error) if isinstance(error, ConfigError) else f"not as its schema has it: {error!r}"


def _plan(
    item: DeclaredSet,
    assignment: Assignment,
    highest: str,
    requests_mcpu: Mapping[tuple[str, str], float],
    sources: _Sources | None,
    missing: Missing | None,
) -> SetPlan:
    """``requests_mcpu``: of containers, by their pods' uids and their names."""
    refused = None
    if MODES.index(item.mode) > MODES.index(highest):
        refused = f"mode {item.mode} is declared; this node's agent allows {highest} at most (--highest-mode)"
    # Such a loop would not start; in shadow it is recorded, and can be promoted by its records.
    unpromoted = sources.refusal if sources is not None and refused is None and item.mode in ACTING else None
    loop = None
    if sources is not None and assignment.pods:
        acts = refused is None and unpromoted is None
        loop = _loop(item, assignment.pods, requests_mcpu, sources, acts)
    follows = {each.name: each.follow for each in item.slices if each.follow and each.name in assignment.pods}
    return SetPlan(
        Identity(item.name, item.namespace, item.uid, item.generation),
        missing=missing,
        unpromoted=unpromoted,
        pods=assignment.pods,
        troubles=assignment.troubles,
        follows=follows,
        refused_mode=refused,
        loop=loop,
    )


def _loop(
    item: DeclaredSet,
    pods: Mapping[str, SlicePod],
    requests_mcpu: Mapping[tuple[str, str], float],
    sources: _Sources,
    acts: bool,
) -> LoopPlan:
    uses = Counter(each.pod.uid for each in pods.values())
    node = item.node_document(
        {name: _upf(each, requests_mcpu, alone=uses[each.pod.uid] == 1) for name, each in pods.items()}
    )
    canary = tuple(name for name in item.canary if name in pods)
    # A canary none of whose slices is here has nothing to act on here.
    mode = "shadow" if not acts or (item.mode == "canary" and not canary) else item.mode
    run = {**sources.run, "period_ms": item.period_ms}
    if any(each.follow is not None and each.follow.cpu_limit_mcpu for each in item.slices if each.name in pods):
        run["foreign"] = RESIZED
    return LoopPlan(item.instance, node, run, mode, canary if mode == "canary" else ())


def _upf(item: SlicePod, requests_mcpu: Mapping[tuple[str, str], float], alone: bool) -> dict[str, Any]:
    """How the loop finds the UPF. By uid only where no other pod will have the name: else it finds the next pod itself.

    ``alone``: the slice has the pod to itself, so that the pod's weight is its own, which all its containers' requests
    have made.
    """
    pod = item.pod
    uid = {} if pod.lasting_name or pod.known_uid is None else {"uid": pod.known_uid}
    named = {"name": pod.name, "namespace": pod.namespace, "container": item.container, **uid}
    request = sum(requests_mcpu[pod.uid, each.name] for each in pod.containers if alone or each.name == item.container)
    return {"upf": {"pod": named}, "cpu_request_mcpu": request}


def _might_concern(document: Mapping[str, Any], labels: Mapping[str, str], pods: list[Pod]) -> bool:
    """Whether an invalid SliceSet is to be reported here: it is meant for this node, and its namespace has pods
    here."""
    spec, meta = document.get("spec") or {}, document.get("metadata") or {}
    wanted = spec.get("nodeSelector") or {}
    here = any(pod.namespace == meta.get("namespace") for pod in pods)
    return here and isinstance(wanted, Mapping) and all(labels.get(key) == value for key, value in wanted.items())
