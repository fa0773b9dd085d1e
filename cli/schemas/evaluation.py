"""``slicepilot simulate`` and ``slicepilot evaluate``."""

from typing import Annotated, NotRequired

from slicepilot.configs.documents import Document, Example

from .shared import AgentName, Ends, ScenarioName, SliceName


class Statistics(Document):
    """Of all samples of all repetitions, over the last five minutes."""

    mean: float
    """Mean."""
    median: float
    """Median."""
    std: float
    """Standard deviation."""


class Groups(Document):
    """The slice that the study puts first, and the others together."""

    slice1: Statistics
    """The first slice."""
    others: Statistics | None
    """The others' samples together; null where an experiment has one slice alone."""


class StudyExperiment(Document):
    """An experiment of the study, sampled as there: over the last five minutes of all repetitions."""

    experiment: Annotated[int, Example(5)]
    """Its number."""
    throughput_mbps: Groups
    """Throughput of a slice."""
    latency_ms: Groups
    """Round trip as the study's UEs see it."""


class PlayedSlice(Document):
    """A slice over the run."""

    slice: SliceName
    """Its name."""
    offered_mbps: float
    """Mean rate that reached N3."""
    carried_mbps: float
    """Mean rate that left at N6."""
    delay_p50_us: float
    """Median of the periods' medians."""
    delay_p99_us: float
    """99th percentile of the periods' 99th percentiles."""
    sla_violation_s: float
    """Time in which its promise was broken."""


class Played(Document):
    """A scenario under one agent, slice by slice."""

    scenario: ScenarioName
    """Its name."""
    agent: AgentName
    """Who controlled it."""
    seed: Annotated[int, Example(0)]
    """Of loads and noise."""
    slices: list[PlayedSlice]
    """In the order of the scenario."""


class JudgedAgent(Document):
    """What one agent made of a scenario: means over its runs, null where there is no such figure."""

    name: AgentName
    """Its name."""
    slice1_loss_pct: float | None
    """Volume that the priority slice lost, against what it carries alone."""
    others_loss_pct: float | None
    """The same of the other slices together, against what they carry without control."""
    slice1_delay_p99_us: float | None
    """99th percentile of the priority slice's delay."""
    sla_violation_s: float | None
    """Time in which promises were broken, slices counting by their weight."""
    cpu_held_core_s: float | None
    """CPU time that the limits held for slices."""
    edge_work: NotRequired[float | None]
    """Work that the edge application got done, in units; there where the scenario has one."""
    return_iqm: float
    """Interquartile mean over runs of the mean reward per control period."""
    ci95: Ends
    """Ends of the 95% interval of `return_iqm`."""
    gap_to_bound_pct: Annotated[float | None, Example(9.5)]
    """How far its mean return is below what nobody can beat; null on real UPFs."""


class Bound(Document):
    """What nobody can beat, whatever they do and know: the node's capacity alone allows no more."""

    mean_return: float
    """No mean reward per control period is higher."""
    sla_violation_s: float
    """No promises are broken for less time, slices counting by their weight."""


class WorstScenario(Document):
    """Where an agent does worst."""

    scenario: ScenarioName
    """Its name."""
    ratio: float
    """Broken seconds over the rival's."""


class Against(Document):
    """One agent against one rival over all scenarios: broken seconds of the one over those of the other."""

    agent: AgentName
    """Who is judged, or a rule."""
    rival: Annotated[str, Example("greedy")]
    """Its name, or `best fixed`: the fixed setting that is best in each scenario, in hindsight."""
    median_ratio: float
    """Of the ratios."""
    ci95: Ends
    """Ends of its 95% interval over scenarios."""
    geometric_mean_ratio: float
    """Of the ratios; small ones weigh in it what great ones do."""
    quartiles: Ends
    """Between which the middle half of the ratios lies."""
    worst: WorstScenario
    """The highest ratio."""
    level_ratio: float
    """Share of scenarios in which the agent is better or as good."""
    median_return_gain: float | None
    """Median of the return's mean less the rival's."""


class OverTrainingSeeds(Document):
    """Bundles that differ in their training seed alone, together against one rival over all scenarios."""

    agents: list[AgentName]
    """The bundles."""
    rival: Annotated[str, Example("greedy")]
    """As in `Against`."""
    median_ratio: float
    """Of the scenarios, each with the mean over the bundles of their ratios."""
    ci95: Ends
    """Ends of its 95% interval over training seeds and scenarios alike."""
    medians: list[float]
    """Of the scenarios, for each bundle alone."""


class Evaluation(Document):
    """A scenario with every agent that played it on the same seeds."""

    scenario: ScenarioName
    """Its name."""
    seeds: Annotated[int, Example(30)]
    """Runs of each agent."""
    agents: list[JudgedAgent]
    dominated_by_agent: list[Annotated[str, Example("experiment-5")]]
    """Fixed settings that the first judged agent beats; empty where nobody is judged."""
    oracle_gap_pct: float | None
    """How far the first judged agent's return is below the clairvoyant player's; negative: above. Null
    where that did not play."""
    bound: Bound | None
    """Means over runs; null on real UPFs."""


class Ratios(Document):
    """Broken seconds over a rival's, over all scenarios."""

    median: float
    """Of the scenarios."""
    worst: float
    """The highest."""
    wins: int
    """Scenarios with a ratio below 1."""


class Gap(Document):
    """How far the mean return is below what nobody can beat, over all scenarios."""

    median: float
    """In per cent."""


class Summary(Document):
    """One agent over all scenarios; null for a rival that did not play."""

    over_best_fixed: Ratios | None
    """Against the fixed setting that is best in each scenario, in hindsight."""
    over_greedy: Ratios | None
    """Against the rule."""
    gap_to_bound_pct: Gap | None
    """See `Bound`."""


class Suite(Document):
    """Many scenarios: how agents fare over all of them, and each of them."""

    suite: Annotated[str, Example("drawn")]
    """Its name."""
    seed: Annotated[int, Example(0)]
    """What it was drawn from."""
    against: list[Against]
    """Every judged agent against every rival, then every other rule against the best fixed setting and greedy."""
    over_training_seeds: list[OverTrainingSeeds]
    """Three or more bundles that differ in their training seed alone; empty without."""
    scenarios: list[Evaluation]
    """In the order in which they were drawn."""
    summary: dict[AgentName, Summary]
    """Every agent over all scenarios."""
