"""The experiments of Andrade and Wickboldt (2025) replayed in the simulator and sampled as the study did.

Ramp of 1200 s; each slice's throughput averaged over, and its round trip sampled at, every 30 s of the last five
minutes; several repetitions. The round trip is the fixed path, the radio access queue, the way from N3 to N6, and the
pacer again on the way back.

One assumption concerns what the study does not describe: how a 2 s drop horizon gives round trips of 100 s. Here a
probe that the pacer drops is sent again after 1, 2, 4 ... s (RFC 6298 back-off, six retries as Linux'
``tcp_syn_retries``, 127 s in all). Probes lost elsewhere give no sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.reference import PublishedSetting, published_settings
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.published import requests_of, setting_knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from . import kernels
from .backend import ScenarioRuns, SimulatorBackend, SimulatorRun
from .cpu import TINY
from .hardware import Hardware
from .scenario import Scenario

RAMP = "andrade-ramp"
WINDOW_S = 300.0
SAMPLE_S = 30.0
RETRY_FIRST_S = 1.0
MAX_RETRIES = 6
GROUPS = ("slice1", "others")
TABLE_MBIT = 1.048576
"""The paper's tables count 2^20 bits as a Mbit: the release's bytes give them so (`data/reference/README.md`)."""


def find_settings(experiments: Sequence[int]) -> list[PublishedSetting]:
    """Settings by number; raises `ConfigError` for numbers outside 1..26."""
    known = {setting.experiment: setting for setting in published_settings()}
    for number in experiments:
        if number not in known:
            raise ConfigError(f"experiments: unknown number {number}; expected 1 to {max(known)}")
    return [known[number] for number in experiments]


class StudyEpisodes:
    """All repetitions of all wanted experiments side by side: lane = experiment x repetitions + repetition."""

    def __init__(
        self,
        settings: Sequence[PublishedSetting],
        repetitions: int,
        hardware: Hardware,
        period_s: float,
        request_mcpu: FloatArray | None = None,
    ) -> None:
        self.scenario = Scenario.from_yaml(RAMP)
        self.slices: SliceSet = self.scenario.slice_set()
        self.settings, self.repetitions = list(settings), repetitions
        self.hardware, self.period_s, self.request_mcpu = hardware, period_s, request_mcpu
        per_lane = [setting_knobs(s, len(self.slices)) for s in settings for _ in range(repetitions)]
        self.knobs = Knobs(np.concatenate([knobs.values for knobs in per_lane], axis=2), nice_scope="process")
        active = np.repeat([s.active_slices for s in settings], repetitions)
        self.active = np.arange(len(self.slices))[:, None] < active

    @property
    def lanes(self) -> int:
        """Experiments x repetitions."""
        return len(self.settings) * self.repetitions

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """One run of all lanes."""
        run = ScenarioRuns(self.scenario, self.hardware, self.period_s, self.request_mcpu).draw(lanes, rng)
        run.traffic.flow_mbps *= self.active
        if self.request_mcpu is None:
            run.request_mcpu = requests_of(self.knobs)
        return run


@dataclass(frozen=True)
class StudySamples:
    """What the study's instruments would have read every `SAMPLE_S`, (T, S, L) each; L = experiments x repetitions.

    Attributes:
        upf_cpu_mcpu: CPU of each UPF.
        upf_mbps, server_mbps: what each UPF passed on, and what its server received, in 10^6 bit/s.
        round_trip_ms: of one ping, which is sent again until it is answered.
    """

    episodes: StudyEpisodes
    upf_cpu_mcpu: FloatArray
    upf_mbps: FloatArray
    server_mbps: FloatArray
    round_trip_ms: FloatArray

    def lanes_of(self, number: int) -> slice:
        """Where the repetitions of one experiment are."""
        at = [setting.experiment for setting in self.episodes.settings].index(number)
        return slice(at * self.episodes.repetitions, (at + 1) * self.episodes.repetitions)

    def groups_of(self, number: int) -> dict[str, slice]:
        """Where the slices of each group are; without the groups that an experiment has not."""
        [active] = [s.active_slices for s in self.episodes.settings if s.experiment == number]
        return {"slice1": slice(0, 1)} | ({"others": slice(1, active)} if active > 1 else {})


class Control(Protocol):
    """Decides in all lanes of a study, where knobs are not the settings' for the whole ramp.

    Attributes:
        request_mcpu: CPU requests (S,) of its pods, None for those that the settings' limits imply.
    """

    request_mcpu: FloatArray | None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None: ...

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs: ...


def play_study(
    settings: Sequence[PublishedSetting],
    hardware: Hardware,
    repetitions: int = 10,
    seed: int = 0,
    period_s: float = 1.0,
    on_step: Callable[[int, int], None] | None = None,
    control: Control | None = None,
) -> StudySamples:
    """Play the whole ramp under some settings.

    Args:
        settings: of the study (`find_settings`), or others of this kind.
        hardware: the node.
        repetitions: of each setting.
        seed: of loads and noise.
        period_s: length of a control period.
        on_step: called with the steps done and the steps in all.
        control: decides after every period; without it the settings' knobs stay.
    """
    request_mcpu = None if control is None else control.request_mcpu
    episodes = StudyEpisodes(settings, repetitions, hardware, period_s, request_mcpu)
    backend = SimulatorBackend(episodes, episodes.lanes)
    telemetry, knobs = backend.reset(seed), episodes.knobs
    if control is not None:
        control.reset(episodes.slices, backend.context, seed)
    knobs = backend.apply(knobs).applied
    steps, every = backend.context.num_steps, round(SAMPLE_S / period_s)
    probe_rng = np.random.default_rng((seed, 1))
    rates = np.zeros((3, *episodes.knobs.nice.shape), np.float32)
    sampled, round_trips = [], []
    for step in range(1, steps + 1):
        if control is not None:
            knobs = backend.apply(control.decide(telemetry, knobs)).applied
        telemetry, dropped = backend.observe(), backend.engine.dropped_mbit
        behind_mbps = (dropped[kernels.DROP_PACER] + dropped[kernels.DROP_UPLINK]) / np.float32(period_s)
        arrives = 1.0 - backend.engine.hardware.server_loss_ratio * telemetry.uplink_use_ratio
        rates += telemetry.cpu_use_mcpu, telemetry.carried_mbps + behind_mbps, telemetry.carried_mbps * arrives
        if step % every == 0:
            sampled.append(rates / np.float32(every))
            rates = np.zeros_like(rates)
            round_trips.append(_round_trip_ms(backend, probe_rng))
        if on_step is not None:
            on_step(step, steps)
    cpu, upf, server = np.stack(sampled, axis=1)
    return StudySamples(episodes, cpu, upf, server, np.stack(round_trips))


def summarise(samples: StudySamples) -> list[dict[str, Any]]:
    """The last five minutes as the paper's tables have them.

    Returns one dictionary per experiment: ``experiment``, and ``throughput_mbps`` (of 2^20 bit/s, see `TABLE_MBIT`) and
    ``latency_ms`` with, per group (``slice1``, ``others``), ``mean``, ``median`` and ``std`` over all samples of all
    repetitions; ``others`` is None where there are none.
    """
    last = slice(-round(WINDOW_S / SAMPLE_S), None)
    results = []
    for setting in samples.episodes.settings:
        number = setting.experiment
        lanes, groups = samples.lanes_of(number), samples.groups_of(number)
        metrics = {"throughput_mbps": samples.server_mbps / TABLE_MBIT, "latency_ms": samples.round_trip_ms}
        results.append(
            {"experiment": number}
            | {
                metric: {g: _statistics(values[last, groups[g], lanes]) if g in groups else None for g in GROUPS}
                for metric, values in metrics.items()
            }
        )
    return results


def series_of(samples: StudySamples, number: int) -> list[dict[str, Any]]:
    """The ramp of one experiment, a dictionary every `SAMPLE_S` and group, over slices and repetitions.

    ``server_received_mbps`` (10^6 bit/s) and ``upf_cpu_mcpu`` are means of one slice; ``latency_ms_p10``, ``_p50`` and
    ``_p90`` are quantiles of the round trip. ``time_s`` is the end of the 30 s.
    """
    lanes, result = samples.lanes_of(number), list[dict[str, Any]]()
    for group, slices in samples.groups_of(number).items():
        received, cpu, trips = (
            values[:, slices, lanes] for values in (samples.server_mbps, samples.upf_cpu_mcpu, samples.round_trip_ms)
        )
        p10, p50, p90 = np.quantile(trips.astype(np.float64), [0.1, 0.5, 0.9], axis=(1, 2))
        result += [
            {
                "time_s": SAMPLE_S * (step + 1),
                "group": group,
                "server_received_mbps": float(received[step].mean()),
                "latency_ms_p10": float(p10[step]),
                "latency_ms_p50": float(p50[step]),
                "latency_ms_p90": float(p90[step]),
                "upf_cpu_mcpu": float(cpu[step].mean()),
            }
            for step in range(len(received))
        ]
    return result


def _round_trip_ms(backend: SimulatorBackend, rng: np.random.Generator) -> FloatArray:
    """One probe per slice and lane, (S, L)."""
    engine = backend.engine
    hardware, telemetry, dropped = engine.hardware, engine.telemetry, engine.dropped_mbit[kernels.DROP_PACER]
    through_pacer = telemetry.carried_mbps * engine.period_s
    survives = np.where(dropped > 0, through_pacer / np.maximum(through_pacer + dropped, TINY), 1.0)
    # Both directions pass the pacer. The number of failures before the first success is geometric.
    success = np.clip(survives**2, 1e-9, 1.0)
    draw = 1.0 - rng.random(success.shape)
    failures = np.floor(np.log(draw) / np.log(np.clip(1.0 - success, 1e-9, 1.0 - 1e-9)))
    failures = np.where(success >= 1.0, 0, np.clip(failures, 0, MAX_RETRIES + 1))
    retry_s = RETRY_FIRST_S * (2.0**failures - 1.0)
    pacer_s = np.maximum(engine.state[kernels.PACER_LEAD_S], 0.0)
    path_ms = hardware.round_trip_ms * np.exp(hardware.round_trip_cv * rng.standard_normal(success.shape))
    return np.asarray(
        path_ms
        + engine.exogenous_row[kernels.ACCESS_DELAY_MS]
        + 1e-3 * telemetry.delay_p50_us
        + 1e3 * (pacer_s + retry_s),
        np.float32,
    )


def _statistics(samples: FloatArray) -> dict[str, float]:
    values = samples.astype(np.float64)
    return {"mean": float(values.mean()), "median": float(np.median(values)), "std": float(values.std(ddof=1))}


def relative_errors(results: Sequence[dict[str, Any]], rows: Sequence[Any]) -> dict[tuple[int, str, str, str], float]:
    """Simulated over published minus 1, for every published row whose experiment was played.

    Keys: (experiment, metric, group, statistic), statistic being ``mean`` and ``median``.
    """
    by_number = {result["experiment"]: result for result in results}
    keys = {"throughput": "throughput_mbps", "latency": "latency_ms"}
    errors = {}
    for row in rows:
        if row.experiment in by_number:
            simulated = by_number[row.experiment][keys[row.metric]][row.group]
            for statistic in ("mean", "median"):
                published = getattr(row, statistic)
                if not math.isnan(published):
                    errors[row.experiment, row.metric, row.group, statistic] = simulated[statistic] / published - 1.0
    return errors


COLLAPSED = (13, "others")


def fit_errors_pct(results: Sequence[dict[str, Any]], rows: Sequence[Any]) -> dict[str, float]:
    """Mean absolute percentage errors per metric and group: mean throughput, median latency.

    Experiment 13's others are left out: with 1.6 Mbit/s and 100 s they are judged as a collapse, not in per cent.
    """
    errors = relative_errors(results, rows)
    out = {}
    for metric, statistic in (("throughput", "mean"), ("latency", "median")):
        for group in GROUPS:
            picked = [
                abs(e)
                for (number, m, g, stat), e in errors.items()
                if (m, g, stat) == (metric, group, statistic) and (number, g) != COLLAPSED
            ]
            out[f"{metric}_{statistic}_{group}_mape_pct"] = 100.0 * float(np.mean(picked))
    return out
