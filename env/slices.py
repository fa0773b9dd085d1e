"""What a slice is promised and how far its knobs may move: the static side of the control problem."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from slicepilot.configs import load

from .arrays import FloatArray

NICE_MIN, NICE_MAX = -20, 19

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def _check_range(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low < high:
        raise ValueError(f"lower bound {low:g} must be below upper bound {high:g}")
    return bounds


def _check_sd(sd: object) -> str | None:
    """Before conversion: YAML reads 000001 without quotes as a number."""
    if sd is None:
        return None
    if isinstance(sd, int | float) and not isinstance(sd, bool):
        raise ValueError(
            "a number, since YAML drops leading zeros without quotes; expected six hexadecimal digits in "
            'quotes, such as "000001"'
        )
    if not isinstance(sd, str) or not re.fullmatch(r"[0-9A-Fa-f]{6}", sd):
        raise ValueError('expected six hexadecimal digits in quotes, such as "000001", or none')
    return sd.upper()


PositiveRange = Annotated[
    tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]], AfterValidator(_check_range)
]
NiceRange = Annotated[
    tuple[Annotated[int, Field(ge=NICE_MIN, le=NICE_MAX)], Annotated[int, Field(ge=NICE_MIN, le=NICE_MAX)]],
    AfterValidator(_check_range),
]


@dataclass(frozen=True)
class SNssai:
    """Single network slice selection assistance information (3GPP TS 23.003, clause 28.4.2).

    ``sst`` is the slice/service type (0..255), ``sd`` the slice differentiator: six hexadecimal digits or none.
    """

    __pydantic_config__ = _STRICT
    sst: Annotated[int, Field(ge=0, le=255)]
    sd: Annotated[str | None, BeforeValidator(_check_sd)] = None

    def __str__(self) -> str:
        return f"{self.sst}" if self.sd is None else f"{self.sst}-{self.sd}"


@dataclass(frozen=True)
class Sla:
    """The promise: while the slice offers at least ``committed_mbps`` it carries that much (and all of it when it
    offers less), and the 99th percentile of the delay from N3 ingress to N6 stays below ``delay_bound_ms``.

    ``least_ratio``: share of the committed rate that rules leave to the slice even when the node cannot keep all
    promises and they give this promise up. With a guard that has SLA floors (`slicepilot.controller.guard.service`) set
    it above their ``carried_ratio``, since the guard applies the safe setting to a slice below that floor. Reward and
    observation ignore it, and so does the comparison of promises: recordings with other values stay usable.
    """

    __pydantic_config__ = _STRICT
    committed_mbps: Annotated[float, Field(gt=0)]
    delay_bound_ms: Annotated[float, Field(gt=0)]
    least_ratio: Annotated[float, Field(ge=0, le=1)] = dataclasses.field(default=0.0, compare=False)


@dataclass(frozen=True)
class KnobBounds:
    """Closed ranges a knob may take beside "none"; see `slicepilot.env.knobs.Knobs` for their meaning."""

    __pydantic_config__ = _STRICT
    cpu_limit_mcpu: PositiveRange = (50.0, 1000.0)
    nice: NiceRange = (-20, 19)
    egress_mbps: PositiveRange = (1.0, 1000.0)


@dataclass(frozen=True)
class SliceSpec:
    """One slice: identity, promise, weight among its neighbours (any positive scale), knob bounds.

    ``upf_threads`` is how many CPUs its UPF's data path can use at once (Open5GS: one). ``cpu_request_mcpu`` is the
    Kubernetes CPU request of its pod, 0 for BestEffort: it fixes the cgroup weight the pod starts with. ``qfi`` is the
    QoS flow identifier (3GPP TS 38.415, clause 5.5.3.3) that a testbed's packets of the slice have.
    """

    __pydantic_config__ = _STRICT
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    s_nssai: SNssai
    sla: Sla
    weight: Annotated[float, Field(gt=0)] = 1.0
    dnn: str = "internet"
    bounds: KnobBounds = KnobBounds()
    upf_threads: Annotated[float, Field(gt=0)] = 1.0
    cpu_request_mcpu: Annotated[float, Field(ge=0)] = 0.0
    qfi: Annotated[int, Field(ge=1, le=63)] = 9


def _check_unique(slices: tuple[SliceSpec, ...]) -> tuple[SliceSpec, ...]:
    for field in ("name", "s_nssai"):
        seen: set[Any] = set()
        for spec in slices:
            value = getattr(spec, field)
            if value in seen:
                raise ValueError(f"duplicate {field} {value}: each slice needs its own")
            seen.add(value)
    return slices


@dataclass(frozen=True)
class SliceSet:
    """The slices that share one node, in a fixed order; index 0..S-1 is the slice axis of every array.

    Raises (through `slicepilot.configs`): `ConfigError` for an empty list, duplicate names or S-NSSAIs, bad values.
    """

    __pydantic_config__ = _STRICT
    slices: Annotated[tuple[SliceSpec, ...], Field(min_length=1, max_length=256), AfterValidator(_check_unique)]

    def __len__(self) -> int:
        return len(self.slices)

    @classmethod
    def from_yaml(cls, name_or_path: str) -> SliceSet:
        """Load ``configs/slices/NAME.yaml`` or a user's file."""
        return load("slices", name_or_path, cls)

    def repeated(self, num_slices: int) -> SliceSet:
        """A set of so many slices that repeats these, with distinct names and S-NSSAIs."""
        result = []
        for i in range(num_slices):
            spec = self.slices[i % len(self)]
            name = f"{spec.name}-{i // len(self)}" if i >= len(self) else spec.name
            result.append(dataclasses.replace(spec, name=name, s_nssai=SNssai(spec.s_nssai.sst, f"{i + 1:06X}")))
        return SliceSet(tuple(result))

    @property
    def names(self) -> tuple[str, ...]:
        """Slice names in order."""
        return tuple(s.name for s in self.slices)

    @property
    def priority_index(self) -> int:
        """Index of the priority slice: the slice with the highest weight (the first of equals)."""
        return int(np.argmax(self.column("weight")))

    def index(self, name: str) -> int:
        """Position of a slice by name; raises KeyError with the accepted names."""
        if name not in self.names:
            raise KeyError(f"unknown slice {name!r}; expected {', '.join(self.names)}")
        return self.names.index(name)

    def column(self, field: str) -> FloatArray:
        """One numeric field of all slices, shape (S, 1), e.g. ``weight`` or ``sla.committed_mbps``."""
        rows = []
        for spec in self.slices:
            value: Any = spec
            for part in field.split("."):
                value = getattr(value, part)
            rows.append(value)
        return np.asarray(rows, np.float32)[:, None]

    def bound(self, knob: str, side: int) -> FloatArray:
        """Lower (side 0) or upper (side 1) bounds of one knob, shape (S, 1)."""
        return np.asarray([[getattr(s.bounds, knob)[side]] for s in self.slices], np.float32)


@dataclass(frozen=True, slots=True)
class Promises:
    """What each slice of each lane is promised, float32 (S, L): the numbers reward and encoder work with.

    One lane's promises are its `SliceSet`'s; training draws them at random to make one policy fit other slice sets.
    ``least_mbps`` is what a slice should have while its promise is given up; no reward counts it, rules keep it.
    """

    weight: FloatArray
    committed_mbps: FloatArray
    delay_bound_us: FloatArray
    least_mbps: FloatArray

    @classmethod
    def of(cls, slices: SliceSet, num_lanes: int = 1) -> Promises:
        """The declared promises, repeated over lanes."""
        ones = np.ones((1, num_lanes), np.float32)
        return cls(
            slices.column("weight") * ones,
            slices.column("sla.committed_mbps") * ones,
            1e3 * slices.column("sla.delay_bound_ms") * ones,
            slices.column("sla.least_ratio") * slices.column("sla.committed_mbps") * ones,
        )
