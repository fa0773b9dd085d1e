"""``slicepilot simulate`` and ``slicepilot evaluate``."""

from typing import Literal, NotRequired

from slicepilot.configs.documents import Document

from .shared import Ends

Statistics = dict[Literal["mean", "median", "std"], float]
Groups = dict[Literal["slice1", "others"], Statistics | None]


class StudyExperiment(Document):
    """An experiment of the study, sampled as the study does: the last five minutes of all repetitions."""

    experiment: int
    throughput_mbps: Groups
    """Throughput per slice; `others` is null where an experiment has one slice."""
    latency_ms: Groups
    """Round-trip time that the UEs measure."""


class PlayedSlice(Document):
    """A slice over the run: mean rates, quantiles over the control periods."""

    slice: str
    offered_mbps: float
    carried_mbps: float
    delay_p50_us: float
    delay_p99_us: float
    sla_violation_s: float


class Played(Document):
    """A scenario under one agent."""

    scenario: str
    agent: str
    seed: int
    slices: list[PlayedSlice]


class JudgedAgent(Document):
    """Results of one agent in a scenario: means over its runs, null where a figure does not exist."""

    name: str
    slice1_loss_pct: float | None
    """Volume that the priority slice lost, compared with what it carries alone."""
    others_loss_pct: float | None
    """The same of the other slices together, compared with no control."""
    slice1_delay_p99_us: float | None
    sla_violation_s: float | None
    """Time with broken promises, weighted by slice."""
    cpu_held_core_s: float | None
    """CPU time that the limits reserved for slices."""
    edge_work: NotRequired[float | None]
    """Units of work of the edge application, where the scenario has one."""
    return_iqm: float
    """Interquartile mean over runs of the mean reward per control period."""
    ci95: Ends
    gap_to_bound_pct: float | None
    """Distance of the mean return from its upper bound; null on real UPFs."""


class Bound(Document):
    """What no agent can beat, because the node's capacity allows no more."""

    mean_return: float
    sla_violation_s: float


class WorstScenario(Document):
    """The scenario in which an agent does worst against a rival."""

    scenario: str
    ratio: float


class Against(Document):
    """An agent against a rival over all scenarios, by the ratio of their seconds with broken promises."""

    agent: str
    rival: str
    """An agent, or `best fixed`: the fixed setting that is best in each scenario, in hindsight."""
    median_ratio: float
    ci95: Ends
    geometric_mean_ratio: float
    quartiles: Ends
    worst: WorstScenario
    level_ratio: float
    """Share of scenarios in which the agent is better or equal."""
    median_return_gain: float | None


class OverTrainingSeeds(Document):
    """Bundles that differ only in their training seed, together against a rival."""

    agents: list[str]
    rival: str
    median_ratio: float
    ci95: Ends
    """Over training seeds and scenarios."""
    medians: list[float]
    """Median ratio of each bundle."""


class Evaluation(Document):
    """A scenario with all agents that ran in it on the same seeds."""

    scenario: str
    seeds: int
    """Number of episodes of each agent."""
    agents: list[JudgedAgent]
    dominated_by_agent: list[str]
    """Fixed settings that the first judged agent beats."""
    oracle_gap_pct: float | None
    """Distance of the first judged agent's return from the clairvoyant agent's; negative: above it."""
    bound: Bound | None


class Ratios(Document):
    """Ratios of seconds with broken promises to a rival's, over all scenarios."""

    median: float
    worst: float
    wins: int
    """Scenarios with a ratio below 1."""


class Summary(Document):
    """One agent over all scenarios; null for a rival that did not run."""

    over_best_fixed: Ratios | None
    over_greedy: Ratios | None
    gap_to_bound_pct: dict[Literal["median"], float] | None


class Evaluations(Document):
    """All scenarios, one by one and together; the optional fields are those of a suite."""

    scenarios: list[Evaluation]
    summary: dict[str, Summary]
    """By agent."""
    suite: NotRequired[str]
    seed: NotRequired[int]
    """Random seed of the suite."""
    against: NotRequired[list[Against]]
    """Every judged agent against every rival, then the other heuristics against the best fixed setting and greedy."""
    over_training_seeds: NotRequired[list[OverTrainingSeeds]]
