"""What a bundle has to achieve in shadow before it may act: ``configs/promotion/NAME.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from slicepilot.configs import load
from slicepilot.controller.contracts.charge import MOST_SAFE

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Ratio = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class ShadowCriteria:
    """How much must have been recorded: ticks of the bundle in shadow that were not paused."""

    __pydantic_config__ = _STRICT
    min_duration_s: NonNegative = 3600.0
    min_ticks: Count = 10_000


@dataclass(frozen=True)
class RecordsCriteria:
    """Share of the controller's windows for the simulator that may be missing from the records, or changed there, after
    the first complete window."""

    __pydantic_config__ = _STRICT
    max_missing_ratio: Ratio = 0.01


@dataclass(frozen=True)
class GuardCriteria:
    """Agreement with the guard, over decisions for slices that were measured.

    Attributes:
        min_unchanged_ratio: share that the guard let through as they were.
        min_agreement_ratio: share that it let through as they were, or shaped for reasons of severity INFO only.
        max_severe: how often a reason of severity SEVERE may have come up.
        max_warning_per_hour: the same of severity WARNING.
        max_safe_ratio: share of the ticks with the safe setting in charge; of those in shadow, or of those in canary
            and live where the bundle was recorded there too, whichever is more.
    """

    __pydantic_config__ = _STRICT
    min_unchanged_ratio: Ratio = 0.5
    min_agreement_ratio: Ratio = 0.99
    max_severe: Count = 0
    max_warning_per_hour: NonNegative = 60.0
    max_safe_ratio: Ratio = MOST_SAFE


@dataclass(frozen=True)
class BudgetCriteria:
    """How fast decisions must have been: share of late ticks, and time from observe to apply."""

    __pydantic_config__ = _STRICT
    max_late_ratio: Ratio = 0.001
    max_total_p99_us: Annotated[float, Field(gt=0)] = 1000.0


@dataclass(frozen=True)
class TelemetryCriteria:
    """Share of ticks and slices that may be without measurements."""

    __pydantic_config__ = _STRICT
    max_invalid_ratio: Ratio = 0.01


@dataclass(frozen=True)
class EstimateCriteria:
    """Criteria for the effect that the policy would have had, estimated with the identified simulator. Changes within
    its error count as none.

    Attributes:
        min_windows: how many times it must have been estimated.
        min_promise_gain_s_per_hour: time with a broken promise that it would have avoided, over all slices.
        min_carried_gain_pct: change of what all slices carried; negative allows a loss.
        max_worse_ratio: share of the windows in which a slice's promise would have been broken for longer.
    """

    __pydantic_config__ = _STRICT
    min_windows: Count = 100
    min_promise_gain_s_per_hour: float = 0.0
    min_carried_gain_pct: float = -2.0
    max_worse_ratio: Ratio = 0.05


@dataclass(frozen=True)
class Criteria:
    """All criteria; a bundle is promoted when it meets all of them."""

    __pydantic_config__ = _STRICT
    shadow: ShadowCriteria = ShadowCriteria()
    records: RecordsCriteria = RecordsCriteria()
    guard: GuardCriteria = GuardCriteria()
    budget: BudgetCriteria = BudgetCriteria()
    telemetry: TelemetryCriteria = TelemetryCriteria()
    estimate: EstimateCriteria = EstimateCriteria()

    @classmethod
    def from_yaml(cls, name_or_path: str = "default") -> Criteria:
        """Load ``configs/promotion/NAME.yaml`` or a user's file.

        Raises:
            ConfigError: a bad value or an unknown field.
        """
        return load("promotion", name_or_path, cls)
