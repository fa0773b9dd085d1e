"""What this node's loops have to be, by what the API server has: no request, no file, no process."""

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

from .placing import Place, Placing, Trouble, place

ACTING = ("canary", "live")
MODES = ("shadow", *ACTING)
"""By how much they may do, least first."""
RESIZED = {"policy": "reassert", "most_reasserts": 100, "window_s": 60.0, "restore": "newest"}
"""What a loop does where the kubelet writes: at each resize that this agent asks for, 30 a minute at most, and at those
of others, which are then what holds without the loop."""
MOST_SETS = 64
"""SliceSets of a namespace that are looked at."""


@dataclass(frozen=True)
class LoopPlan:
    """What one loop is started with, and the mode that it is to be in.

    Attributes:
        instance: what it is called.
        node: its node's configuration (`slicepilot.node.config.spec`).
        run: its own (`slicepilot.controller.service.run_config`), without the mode.
        mode, canary: to be in; may be changed while it runs.
    """

    instance: str
    node: Mapping[str, Any]
    run: Mapping[str, Any]
    mode: str
    canary: tuple[str, ...]

    def starts_as(self, other: LoopPlan) -> bool:
        """Whether a loop of the other needs no new start."""
        return (self.instance, self.node, self.run) == (other.instance, other.node, other.run)

    def acts_as(self, other: LoopPlan) -> bool:
        """Whether it is to be in the same mode."""
        return (self.mode, self.canary) == (other.mode, other.canary)


@dataclass(frozen=True)
class Forbidden:
    """A mode that is declared, and the highest that this node's agent lets a loop have."""

    mode: str
    highest: str


@dataclass(frozen=True)
class Missing:
    """What it refers to and is not here (yet): a reason of conditions, and a line."""

    reason: str
    message: str


@dataclass(frozen=True)
class SetPlan:
    """What a SliceSet is on this node.

    Attributes:
        who: it is.
        invalid: why no loop could run with it, in a line.
        missing: what it refers to and is not as it is now declared. A loop that has run goes on with what it had.
        unpromoted: why its bundle may not act, whose loop runs in shadow although more is declared; None for none.
        crowded: why it has no loop although one could run: others have them all.
        places: where its slices' UPFs are.
        troubles: of slices that have pods here.
        follows: what the API server is told of slices that have pods here.
        forbidden: the mode that it asks for and may not have on this node, whose loop runs in shadow; None for none.
        loop: None where there is nothing to run.
    """

    who: Identity
    invalid: str | None = None
    missing: Missing | None = None
    unpromoted: str | None = None
    crowded: str | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    follows: Mapping[str, Follow] = field(default_factory=dict)
    forbidden: Forbidden | None = None
    loop: LoopPlan | None = None


class Planner:
    """Plans again and again, and remembers where slices were.

    Args:
        highest_mode: that a loop may have; one of `MODES`. A SliceSet that asks for more has its loop in shadow: of a
            mode that names no slices there is none lower that would name any.
        trust: public key that loops have to find fetched bundles signed with; None: they need not be.

    Attributes:
        wanted: what the SliceSets that have pods here refer to, the older ones' first, with which SliceSets, by uid and
            generation, do; as last planned.
    """

    def __init__(self, highest_mode: str = "live", trust: Path | None = None) -> None:
        self._highest, self._trust = highest_mode, trust
        self._before: dict[str, Mapping[str, Place]] = {}
        self._known: dict[tuple[str, int], DeclaredSet | str] = {}
        self._requests: dict[tuple[str, str], float] = {}
        self._had: dict[str, _Sources] = {}
        self.wanted: dict[Wanted, frozenset[tuple[str, int]]] = {}

    @property
    def used(self) -> set[Path]:
        """Paths that loops were last planned with: whatever is declared now, these may still run."""
        texts = [one.run.get(key) for one in self._had.values() for key in ("bundle", "guard")]
        return {Path(text) for text in texts if text is not None and text.startswith("/")}

    def plan(
        self,
        documents: Iterable[Mapping[str, Any]],
        pods: Iterable[Pod],
        node_labels: Mapping[str, str],
        now_s: float,
        fetched: Mapping[Wanted, Fetched] = MappingProxyType({}),
    ) -> list[SetPlan]:
        """Plans of all SliceSets that this node has to say something about: those that are invalid and might have pods
        here, then those that have, the older ones first.

        Args:
            documents: of all SliceSets, as the API server has them.
            pods: of this node.
            node_labels: its labels.
            now_s: by the monotonic clock.
            fetched: what has become of what was `wanted`.
        """
        there = list(pods)
        valid: list[DeclaredSet] = []
        plans: list[SetPlan] = []
        known, self._known = self._known, {}
        away = {spot.pod.namespace for places in self._before.values() for spot in places.values()}
        for document in _oldest(documents, away | {pod.namespace for pod in there}):
            who = Identity.of(document)
            # A spec does not change without its generation, and checking it takes milliseconds.
            one = known.get((who.uid, who.generation)) or _declared(document)
            self._known[who.uid, who.generation] = one
            if isinstance(one, DeclaredSet):
                valid.append(one)
            elif _might_concern(document, node_labels, there):
                plans.append(SetPlan(who, invalid=one))
        meant = [one for one in valid if one.concerns(node_labels)]
        found = place(meant, there, self._before, now_s)
        self._before = {uid: placing.places for uid, placing in found.items() if placing.places}
        meant.sort(key=lambda one: one.age)
        here = [one for one in meant if found[one.uid].places or found[one.uid].troubles]
        self._request(spot for one in here for spot in found[one.uid].places.values())
        self.wanted = _wanted(here)
        had, self._had = self._had, {}
        for one in here:
            sources, missing = _sources(one, fetched, had.get(one.uid), self._trust)
            if sources is not None:
                self._had[one.uid] = sources
            plans.append(_plan(one, found[one.uid], self._highest, self._requests, sources, missing))
        return plans

    def _request(self, spots: Iterable[Place]) -> None:
        """CPU requests of pods as they were at first: where they are resized amid a loop, it is not started anew."""
        kept, self._requests = self._requests, {}
        for pod in [spot.pod for spot in spots]:
            for container in pod.containers:
                key = pod.uid, container.name
                self._requests[key] = kept.get(key, container.cpu_request_mcpu)


@dataclass(frozen=True)
class _Sources:
    """What a loop is told of policy and rules, and why the policy may not act."""

    run: Mapping[str, Any]
    refusal: str | None = None


def _wanted(sets: Iterable[DeclaredSet]) -> dict[Wanted, frozenset[tuple[str, int]]]:
    found: dict[Wanted, frozenset[tuple[str, int]]] = {}
    for one in sets:
        for each in filter(None, (one.bundle_from, one.rules_from)):
            found[each] = found.get(each, frozenset()) | {(one.uid, one.generation)}
    return found


def _sources(
    one: DeclaredSet, fetched: Mapping[Wanted, Fetched], had: _Sources | None, trust: Path | None
) -> tuple[_Sources | None, Missing | None]:
    """What is declared, as far as it is here, else what it had; and what is not as declared."""
    wanted = [each for each in (one.bundle_from, one.rules_from) if each is not None]
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
    run: dict[str, Any] = {**one.policy, "guard": one.guard}
    refusal = None
    if one.bundle_from is not None:
        run["bundle"], refusal = str(states[one.bundle_from].path), states[one.bundle_from].refusal
        if trust is not None:
            run["trust"] = str(trust)
    if one.rules_from is not None:
        run["guard"] = str(states[one.rules_from].path)
    return _Sources(run, refusal), missing


def _oldest(documents: Iterable[Mapping[str, Any]], namespaces: set[str]) -> list[Mapping[str, Any]]:
    """Of each namespace that has pods here the oldest `MOST_SETS`: who makes thousands holds up his own alone."""
    found: dict[str, list[Mapping[str, Any]]] = {namespace: [] for namespace in namespaces}
    for document in documents:
        of_namespace = found.get(document["metadata"]["namespace"])
        if of_namespace is not None:
            of_namespace.append(document)
    for of_namespace in found.values():
        of_namespace.sort(key=lambda one: (one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"]))
    return [document for of_namespace in found.values() for document in of_namespace[:MOST_SETS]]


def _declared(document: Mapping[str, Any]) -> DeclaredSet | str:
    """The SliceSet, or why it is none that a loop could run with."""
    try:
        return declared(document)
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        # A schema of another version may let through what this one has no name for: that is invalid, too.
        return str(error) if isinstance(error, ConfigError) else f"not as its schema has it: {error!r}"


def _plan(
    one: DeclaredSet,
    placing: Placing,
    highest: str,
    requests_mcpu: Mapping[tuple[str, str], float],
    sources: _Sources | None,
    missing: Missing | None,
) -> SetPlan:
    """``requests_mcpu``: of containers, by their pods' uids and their names."""
    who = Identity(one.name, one.namespace, one.uid, one.generation)
    forbidden = Forbidden(one.mode, highest) if MODES.index(one.mode) > MODES.index(highest) else None
    # Such a loop would not start: in shadow it is recorded, by which it can be promoted.
    unpromoted = sources.refusal if sources is not None and forbidden is None and one.mode in ACTING else None
    loop = None
    if sources is not None and placing.places:
        loop = _loop(one, placing.places, requests_mcpu, sources, acts=forbidden is None and unpromoted is None)
    follows = {each.name: each.follow for each in one.slices if each.follow and each.name in placing.places}
    return SetPlan(
        who,
        missing=missing,
        unpromoted=unpromoted,
        places=placing.places,
        troubles=placing.troubles,
        follows=follows,
        forbidden=forbidden,
        loop=loop,
    )


def _loop(
    one: DeclaredSet,
    places: Mapping[str, Place],
    requests_mcpu: Mapping[tuple[str, str], float],
    sources: _Sources,
    acts: bool,
) -> LoopPlan:
    uses = Counter(spot.pod.uid for spot in places.values())
    node = one.node_document(
        {name: _upf(spot, requests_mcpu, alone=uses[spot.pod.uid] == 1) for name, spot in places.items()}
    )
    canary = tuple(name for name in one.canary if name in places)
    # A canary none of whose slices is here has nothing to act on here.
    mode = "shadow" if not acts or (one.mode == "canary" and not canary) else one.mode
    run = {**sources.run, "period_ms": one.period_ms}
    if any(each.follow is not None and each.follow.cpu_limit_mcpu for each in one.slices if each.name in places):
        run["foreign"] = RESIZED
    return LoopPlan(one.instance, node, run, mode, canary if mode == "canary" else ())


def _upf(spot: Place, requests_mcpu: Mapping[tuple[str, str], float], alone: bool) -> dict[str, Any]:
    """How the loop finds it. By uid only where no other pod will have the name: else it finds the next one itself.

    ``alone``: the slice has the pod to itself, so that the pod's weight is its own, which all its containers' requests
    have made.
    """
    pod = spot.pod
    uid = {} if pod.lasting_name or pod.known_uid is None else {"uid": pod.known_uid}
    named = {"name": pod.name, "namespace": pod.namespace, "container": spot.container, **uid}
    request = sum(requests_mcpu[pod.uid, one.name] for one in pod.containers if alone or one.name == spot.container)
    return {"upf": {"pod": named}, "cpu_request_mcpu": request}


def _might_concern(document: Mapping[str, Any], labels: Mapping[str, str], pods: list[Pod]) -> bool:
    """Whether an invalid one is worth a word here: it is meant for this node, and its namespace has pods here."""
    spec, meta = document.get("spec") or {}, document.get("metadata") or {}
    wanted = spec.get("nodeSelector") or {}
    here = any(pod.namespace == meta.get("namespace") for pod in pods)
    return here and isinstance(wanted, Mapping) and all(labels.get(key) == value for key, value in wanted.items())
