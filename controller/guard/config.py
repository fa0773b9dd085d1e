"""Configuration of the guard: ``configs/guard/NAME.yaml``, validated.

A section that has ``enabled`` is a rule that can be switched off; without it nothing else of the section counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from slicepilot.configs import load
from slicepilot.configs.reading import Roots
from slicepilot.env.slices import NICE_MAX, NICE_MIN

PRIORITY = "priority"
"""Stands for the slice of highest weight where a configuration names slices."""

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
# Its integer nanoseconds, doubled a few times, have to stay below 2**63.
Seconds = Annotated[float, Field(gt=0, le=1e6)]
SecondsOrZero = Annotated[float, Field(ge=0, le=1e6)]


def _named(name: str) -> Callable[[Any], Any]:
    """A validator that reads ``name`` in files as None."""
    return lambda raw: None if raw == name else raw


def _inherit(raw: Any) -> Any:
    """Fill fields that a slice's entry lacks from the default."""
    if not isinstance(raw, Mapping):
        return raw
    default, slices = raw.get("default") or {}, raw.get("slices") or {}
    if not isinstance(default, Mapping) or not isinstance(slices, Mapping):
        return raw
    filled = {name: {**default, **own} if isinstance(own, Mapping) else own for name, own in slices.items()}
    return {**raw, "slices": filled}


PositiveOrNone = Annotated[Positive | None, BeforeValidator(_named("none"))]
NotNegativeOrNone = Annotated[NotNegative | None, BeforeValidator(_named("none"))]


@dataclass(frozen=True)
class Hysteresis:
    """Changes that are too small to be made.

    Attributes:
        limit_ratio, egress_ratio: relative changes of the CPU limit or the egress rate below this hold. To or from
            "none" is never small.
        nice_levels: changes by fewer levels hold; 0 and 1 let all through.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    limit_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.02
    egress_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.02
    nice_levels: Annotated[int, Field(ge=0, le=40)] = 0


@dataclass(frozen=True)
class Dwell:
    """How long a knob rests after it has changed. What raises a slice's guarantee is never delayed.

    Attributes:
        cpu_limit_s, nice_s, egress_s: until a lower limit, a higher nice or a lower rate may follow.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    cpu_limit_s: SecondsOrZero = 0.02
    nice_s: SecondsOrZero = 0.02
    egress_s: SecondsOrZero = 0.02


@dataclass(frozen=True)
class Slew:
    """How fast knobs move; in a tick by at most rate times the time since the last tick.

    Attributes:
        cpu_limit_per_s, egress_per_s: in a second by a factor of at most e to this; "none" is the upper bound here.
        nice_levels_per_s: levels in a second; a tick always moves at least a level.
        most_periods: a longer pause than this many control periods allows no longer step.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    cpu_limit_per_s: Positive = 200.0
    egress_per_s: Positive = 200.0
    nice_levels_per_s: Positive = 2000.0
    most_periods: Annotated[float, Field(ge=1)] = 5.0


@dataclass(frozen=True)
class Oscillation:
    """How often a knob may turn back by a significant move. What raises a slice's guarantee is never delayed.

    Attributes:
        window_s: reversals are counted over this time, and over no fewer periods than would hold twice as many.
        reversals: a knob that has turned back so often is not lowered again until the first of them is this long ago.
        factor: a significant move of a CPU limit or an egress rate; nice_levels: of nice.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    window_s: Seconds = 1.0
    reversals: Annotated[int, Field(ge=1, le=1000)] = 12
    factor: Annotated[float, Field(gt=1)] = 1.3
    nice_levels: Annotated[int, Field(ge=1, le=39)] = 4


@dataclass(frozen=True)
class Floor:
    """The minimum that a slice always gets.

    Attributes:
        cpu_limit_mcpu: no CPU limit of it is lower.
        egress_mbps: no egress rate of it is lower.
        cpu_share_mcpu: CPU it gets when all slices want all they can have: the lesser of its limit and its part of the
            node by weight.
    """

    __pydantic_config__ = _STRICT
    cpu_limit_mcpu: NotNegative = 0.0
    egress_mbps: NotNegative = 0.0
    cpu_share_mcpu: NotNegative = 0.0


@dataclass(frozen=True)
class Floors:
    """`Floor` of every slice; a slice's own entry takes from ``default`` what it does not say."""

    __pydantic_config__ = _STRICT
    enabled: bool = True
    default: Floor = Floor()
    slices: dict[str, Floor] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """The node's CPU.

    Attributes:
        cpu_limits_ratio: all CPU limits that are set come to at most so many times the node's CPUs; what
            they have above their floors is scaled down alike. None: limits may overcommit the node, weights share it.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    cpu_limits_ratio: PositiveOrNone = None


@dataclass(frozen=True)
class SlaFloor:
    """Below which service a slice must not fall while the policy acts.

    Attributes:
        carried_ratio: share of min(offered, committed) that is carried in the mean of the window; 0 is no floor.
        delay_factor: p99 delay in delay bounds, in every single period; none is no floor.
        least_mbps: both hold only while the slice offers so much, or all of its commitment if that is less, and has
            done so for the window of the means: of less than a few dozen packets the fate of each would be a share.
        patience_s: how long it may be below.
    """

    __pydantic_config__ = _STRICT
    carried_ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    delay_factor: PositiveOrNone = None
    least_mbps: NotNegative = 1.0
    patience_s: SecondsOrZero = 0.3


@dataclass(frozen=True)
class Trial:
    """Handling of service floors that the safe setting does not keep either (see `SlaFloors`).

    Attributes:
        enabled: without it the safe setting always stays.
        patience_s: how long the floor stays broken under the safe setting, after a window for its rates, until the
            policy has the slice back; none is the floor's own patience.
        tolerance_ratio: the lowered floor, as a share of what the safe setting achieved.
        spare_s: how long the floor is lowered the first time; twice as long each time that follows within
            `Safe.forget_s`, up to most_spare_s.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    patience_s: Annotated[SecondsOrZero | None, BeforeValidator(_named("none"))] = None
    tolerance_ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    spare_s: Seconds = 10.0
    most_spare_s: Seconds = 120.0


@dataclass(frozen=True)
class SlaFloors:
    """`SlaFloor` of every slice, as in `Floors`; rates are means over ``window_s``.

    What ``default`` says holds for the slice of highest weight, unless ``by_weight`` is off. A slice of half that
    weight has half of its ``carried_ratio`` and twice its ``patience_s``: a node that cannot keep all promises keeps
    those that weigh more, and serves others in between. A slice's own entry counts as it is.

    A slice whose service floor stays broken for ``patience_s`` under the policy gets its safe setting; if the floor
    stays broken under that as well, the node cannot keep it, and the slice goes back to the policy with its floor
    lowered to half of what the safe setting achieved, for ``spare_s``.
    """

    __pydantic_config__ = _STRICT
    enabled: bool = True
    window_s: Annotated[float, Field(gt=0, le=60)] = 0.2
    by_weight: bool = True
    trial: Trial = Trial()
    default: SlaFloor = SlaFloor()
    slices: dict[str, SlaFloor] = field(default_factory=dict)


@dataclass(frozen=True)
class SafeSetting:
    """A slice's knobs when the guard takes over; none is no limit, no shaping.

    Attributes:
        nice: None, "by-weight" in files, is the slice's level in `slicepilot.env.promises.static_order` of all slices,
            within its bounds; 0 where nice ranks nothing between slices. No control would let neighbours starve the
            slice that matters.
    """

    __pydantic_config__ = _STRICT
    cpu_limit_mcpu: PositiveOrNone = None
    nice: Annotated[Annotated[int, Field(ge=NICE_MIN, le=NICE_MAX)] | None, BeforeValidator(_named("by-weight"))] = None
    egress_mbps: NotNegativeOrNone = None


@dataclass(frozen=True)
class Safe:
    """The safe setting of every slice, as in `Floors`, and how long it stays after a trip.

    A trip of a slice is a service floor of it that is broken, unless the safe setting does no better (`Trial`); too
    many overruns are a trip of the node, and so of all slices. Each slice, and the node, has trips of its own.

    Attributes:
        default, slices: the setting.
        hold_s: after the first trip; twice as long after each further trip, up to most_hold_s.
        forget_s: after so long without a trip the next counts as the first.
        latch_after: at this trip in a row the safe setting stays until an operator resumes.
    """

    __pydantic_config__ = _STRICT
    default: SafeSetting = SafeSetting()
    slices: dict[str, SafeSetting] = field(default_factory=dict)
    hold_s: Seconds = 5.0
    most_hold_s: Seconds = 60.0
    forget_s: SecondsOrZero = 120.0
    latch_after: Annotated[int, Field(ge=1, le=1000)] = 3


@dataclass(frozen=True)
class Distrust:
    """When measurements are not believed: the knobs hold, then go to safe.

    Attributes:
        hold_s: so long the knobs hold; recover_s: the safe setting stays until all has been well for so long. A single
            slice that is not measured, or whose figures alone cannot be, has both to itself.
        most_age_s: older measurements are stale.
        frozen_ticks: so many ticks in which no figure of a loaded node changes are frozen; none: never.
        uplink_ratio, cpu_ratio: carried rate over the uplink's, and CPU use over the node's, that cannot be. In the
            mean of `SlaFloors.window_s`: within one window a full buffer may well leave faster than the uplink. Where
            slices that carry more than uplink_ratio times what they are offered account for it, they alone are not
            believed.
        most_ratio: loss, throttling and idle ratios above this cannot be; counters are not read all at once, so a
            little above 1 is possible.
        most_delay_s: longer delays cannot be.
    """

    __pydantic_config__ = _STRICT
    hold_s: SecondsOrZero = 0.25
    recover_s: SecondsOrZero = 1.0
    most_age_s: Positive = 0.1
    frozen_ticks: Annotated[Annotated[int, Field(ge=2)] | None, BeforeValidator(_named("none"))] = 20
    uplink_ratio: Annotated[float, Field(ge=1)] = 1.25
    cpu_ratio: Annotated[float, Field(ge=1)] = 1.25
    most_ratio: Annotated[float, Field(ge=1)] = 1.1
    most_delay_s: Positive = 3600.0


@dataclass(frozen=True)
class Patience:
    """For ``patience_s`` of bad decisions the knobs hold, then the safe setting follows; after ``recover_s`` of good
    decisions the policy acts again."""

    __pydantic_config__ = _STRICT
    patience_s: SecondsOrZero = 0.1
    recover_s: SecondsOrZero = 1.0


@dataclass(frozen=True)
class Overruns:
    """Decisions that came too late: more than ``most`` within ``window_s`` are a trip (see `Safe`)."""

    __pydantic_config__ = _STRICT
    enabled: bool = True
    most: Annotated[int, Field(ge=1, le=100_000)] = 10
    window_s: Seconds = 1.0


@dataclass(frozen=True)
class GuardConfig:
    """The whole envelope; the range of each knob is the slice's `KnobBounds`."""

    __pydantic_config__ = _STRICT
    hysteresis: Hysteresis = Hysteresis()
    dwell: Dwell = Dwell()
    slew: Slew = Slew()
    oscillation: Oscillation = Oscillation()
    floor: Annotated[Floors, BeforeValidator(_inherit)] = field(default_factory=Floors)
    budget: Budget = Budget()
    sla_floor: Annotated[SlaFloors, BeforeValidator(_inherit)] = field(default_factory=SlaFloors)
    safe: Annotated[Safe, BeforeValidator(_inherit)] = field(default_factory=Safe)
    telemetry: Distrust = Distrust()
    not_a_number: Patience = Patience()
    policy_error: Patience = Patience()
    overruns: Overruns = Overruns()

    @classmethod
    def from_yaml(cls, name_or_path: str, roots: Roots | None = None) -> GuardConfig:
        """Load ``configs/guard/NAME.yaml`` or a user's file, with ``roots`` as `load` has it; raises ConfigError."""
        return load("guard", name_or_path, cls, roots)
