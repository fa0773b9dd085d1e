"""An evaluation as one HTML file to read."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from slicepilot.data.intervals import Interval
from slicepilot.training.reports.page import bullets, definitions, page, table

from . import plots
from .comparison import AgentResult, ScenarioResult, SubjectSummary
from .results import Evaluation
from .scores import EDGE_WORK
from .summary import count, figures_shown, headline, losses, ratio, sentences, short_list, some_of

MAX_ROWS = 12
METRICS = (
    ("slice1_loss_pct", "Priority slice's loss, %", 1.0, 1),
    ("others_loss_pct", "Others' loss, %", 1.0, 1),
    ("slice1_delay_p99_us", "Priority slice's delay p99, ms", 1e-3, 1),
    ("sla_violation_s", "Promises broken, weighted s", 1.0, 1),
    ("cpu_held_core_s", "CPU held, core-s", 1.0, 0),
    ("churn_pct", "Knobs moved per period, %", 1.0, 1),
    ("return", "Return", 1.0, 3),
)
"""Score, heading, factor and digits."""
EDGE_METRIC = (EDGE_WORK, "Edge application's work, blocks", 1.0, 0)
ROLES = {
    "learned": "learned",
    "clairvoyant": "sees the future",
    "adaptive": "heuristic",
    "fixed": "",
    "reference": "fewer slices active",
}
BEST = "Best fixed setting in hindsight"
RATIO_HEAD = (
    *("Scenario", "Fixed settings dominated", BEST, "Promises broken, ratio to it"),
    *("CPU held, ratio to it", "Gap to the clairvoyant agent", "Dominated by"),
)


def render(evaluation: Evaluation) -> str:
    """The whole document."""
    results = evaluation.scenarios
    subjects = list(dict.fromkeys(name for r in results for name in r.subjects))
    sections = [
        ("verdict", "Summary", _verdict(evaluation, subjects)),
        *((f"scenario-{r.scenario}", r.scenario, _scenario(r)) for r in results),
        ("loses", "Where it loses", _where_it_loses(results)),
        ("fit", "How well the simulator fits", _fit(evaluation)),
        ("terms", "What the figures mean", definitions(_terms(results[0]).items())),
        ("reproduce", "How to reproduce", _reproduce(evaluation)),
    ]
    seeds = "/".join(map(str, sorted({r.seeds for r in results})))
    return page(
        ": ".join(filter(None, ["slicepilot evaluation", ", ".join(subjects)])),
        f"{count(len(results), 'scenario')}, {seeds} seeds each, the same for every agent. "
        f"{evaluation.provenance.created}",
        sections,
        f"slicepilot {evaluation.provenance.versions.get('slicepilot', '')}",
    )


def _verdict(evaluation: Evaluation, subjects: list[str]) -> str:
    parts = []
    for subject in subjects:
        verdicts = {r.scenario: r.verdict(subject) for r in evaluation.scenarios if subject in r.subjects}
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in headline(subject, verdicts))
        parts.append(f'<div class="verdict">{said}</div>')
        rows = [_ratio_row(scenario, verdict) for scenario, verdict in verdicts.items()]
        parts.append(table(RATIO_HEAD, rows, (BEST, "Dominated by")))
    if not subjects:
        parts.append(
            '<div class="verdict"><p>No agent is judged: this compares fixed settings and heuristics.</p>'
            "<p>Name a trained policy with <code>--bundle</code> to judge it.</p></div>"
        )
    everywhere = set.intersection(*({a.name for a in r.rivals} for r in evaluation.scenarios))
    if len(evaluation.scenarios) > 1 and everywhere:
        returns = {name: evaluation.overall_return(name) for name in everywhere}
        ranked = sorted(everywhere, key=lambda name: (-returns[name].value, name))
        chosen = [name for i, name in enumerate(ranked) if i < MAX_ROWS or name in {*subjects, "no-control"}]
        parts.append("<h3>Over all scenarios</h3>")
        parts.append(plots.overall(chosen, [returns[name] for name in chosen], subjects))
    return "\n".join(parts)


def _ratio_row(scenario: str, v: SubjectSummary) -> list[str]:
    return [
        f'<a href="#scenario-{escape(scenario)}">{escape(scenario)}</a>',
        f"{len(v.dominated)} of {len(v.fixed)}",
        escape(v.best_fixed or "–"),
        _ratio_cell(v.violation_ratio),
        _ratio_cell(v.cpu_ratio),
        "–" if v.clairvoyant_gap_pct is None else f"{v.clairvoyant_gap_pct:.1f}%",
        escape(some_of(v.beaten_by)) if v.beaten_by else "none",
    ]


def _ratio_cell(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    kind, word = ("good", " less") if interval.high < 1 else ("bad", " more") if interval.low > 1 else ("", "")
    return (
        f'<span class="{kind}">{ratio(interval.value)}{word}</span>'
        f"<small>{ratio(interval.low)} to {ratio(interval.high)}</small>"
    )


def _scenario(result: ScenarioResult) -> str:
    short, level = short_list(result), f"{100 * result.level:.0f}%"
    parts = [f"<p>{escape(result.description)}</p>", f'<p class="note">{escape(_facts(result))}</p>']
    parts += [bullets(map(escape, sentences(result, name))) for name in result.subjects]
    parts.append(_agents_table(result, short))
    if len(short) < len(result.agents):
        full = _agents_table(result, result.agents)
        parts.append(f"<details><summary>All {len(result.agents)} settings and agents</summary>{full}</details>")
    panels = [plots.pareto(result), plots.delay_ecdf(result)]
    panels.append(
        plots.bars(result, "sla_violation_s", "Promises broken", "weighted seconds per run (less is better)",
                   f"Mean with {level} interval; the featured agents and those that break promises least.")
    )  # fmt: skip
    panels.append(
        plots.bars(result, "cpu_held_core_s", "CPU held by limits", "core-seconds per run",
                   "Kept from other work on the node; a slice without a limit holds all that its UPF can use.")
    )  # fmt: skip
    if result.has_edge:
        panels.append(
            plots.bars(result, EDGE_WORK, "The edge application's work", "blocks per run (more is better)",
                       "Other work that the node did with the CPU time that the slices left.")
        )  # fmt: skip
    over_time = "".join(plots.over_time(result, name) for name in result.featured)
    parts.append(f'<div class="panels">{"".join(panels)}</div><h3>Over time</h3><div class="panels">{over_time}</div>')
    return "\n".join(parts)


def _facts(result: ScenarioResult) -> str:
    priority = result.priority_index
    window = "the whole run"
    if result.loss_window_s:
        window = f"seconds {result.loss_window_s[0]:g} to {result.loss_window_s[1]:g}, whole-run losses in small print"
    where = "real UPFs on a testbed" if result.backend == "testbed" else f"hardware {result.hardware}"
    return (
        f"{len(result.slice_names)} slices on {where}, {result.duration_s:g} s, "
        f"a decision every {result.period_s:g} s, {result.seeds} seeds. Priority slice: {result.slice_names[priority]} "
        f"(promised {result.committed_mbps[priority]:g} Mbit/s within {result.delay_bound_ms[priority]:g} ms). "
        f"Losses are taken over {window}."
    )


def _agents_table(result: ScenarioResult, agents: Iterable[AgentResult]) -> str:
    ordered = sorted(agents, key=lambda a: (a.name not in result.subjects, a.scores["sla_violation_s"].mean()))
    metrics = (*METRICS, EDGE_METRIC) if result.has_edge else METRICS
    rows = []
    for agent in ordered:
        alike = sum(figures_shown(a) == figures_shown(agent) for a in result.rivals if a not in ordered)
        tags = [ROLES[agent.role] if ROLES[agent.role] != agent.name else "", f"and {alike} like it" if alike else ""]
        tag = ", ".join(filter(None, tags))
        name = escape(agent.name) + (f'<span class="tag">{tag}</span>' if tag else "")
        name = f"<b>{name}</b>" if agent.name in result.subjects else name
        rows.append([name, *(_cell(result, agent, key, scale, digits) for key, _, scale, digits in metrics)])
    return table(("Agent", *(title for _, title, _, _ in metrics)), rows)


def _cell(result: ScenarioResult, agent: AgentResult, key: str, scale: float, digits: int) -> str:
    summary = result.summary(agent.name, key)
    value, low, high = (
        f"{scale * x:,.{digits}f}".replace("-", "−") for x in (summary.value, summary.low, summary.high)
    )
    below = f"<small>{low} to {high}</small>" if (low, high) != (value, value) else ""
    whole = key.replace("_loss_pct", "_loss_whole_pct")
    if result.loss_window_s and whole != key:
        run = f"{result.summary(agent.name, whole).value:.1f}".replace("-", "−")
        below += f"<small>whole run {run}</small>"
    return f"{value}{below}"


def _where_it_loses(results: Iterable[ScenarioResult]) -> str:
    items = [
        f"<b>{escape(result.scenario)}</b>, {escape(subject)}: {escape(sentence)}"
        for result in results
        for subject in result.subjects
        for sentence in losses(result, subject)
    ]
    if not items:
        return "<p>No agent is judged, or none of its comparisons was lost.</p>"
    note = "Of the settings that are not dominated, the one furthest from it is named for each kind of loss."
    return f'<p class="note">{note}</p>{bullets(items)}'


def _fit(evaluation: Evaluation) -> str:
    if all(result.backend == "testbed" for result in evaluation.scenarios):
        return "<p>Nothing is simulated here: UPFs, packets, knobs and delays are real.</p>"
    source = (
        "The node is simulated. Where a fit is listed, its parameters are fitted to the published measurements of "
        "Andrade and Wickboldt (JNSM 33(4):90, 2025); what is left over is the error to keep in mind."
    )
    parts = [f"<p>{source}</p>"]
    for hardware, fit in evaluation.fits.items():
        if fit:
            rows = [[escape(k.replace("_", " ")), f"{v:g}"] for k, v in fit.items()]
            parts.append(f"<h3>{escape(hardware)}</h3>{table(('Error of the fit', 'Value'), rows)}")
        else:
            parts.append(f"<p><b>{escape(hardware)}</b>: not fitted to measurements; orders of size only.</p>")
    return "\n".join(parts)


def _terms(result: ScenarioResult) -> dict[str, str]:
    return {
        "Loss": "How much less was carried than in the reference on the same seed: for the priority slice the run with "
        "no other slice active (experiment 1), for the others no control (experiment 5). Negative: more.",
        "Delay p99": "99th percentile over time of the per-period p99 delay from N3 to N6, periods weighted by the "
        "volume carried; on a testbed of all packets of a run. Mean over seeds.",
        "Promises broken": "Seconds in which a slice carries under 99% of what it was promised, as a mean over 2 s "
        "(the default averaging window of 3GPP TS 23.501) or a longer control period, or its p99 delay exceeds its "
        "bound, times its share of all weights, summed over slices.",
        "CPU held": "Core-seconds that limits reserve; a slice without a limit counts with all its UPF can use, the "
        "node with no more than it has.",
        "Return": "Mean reward per control period; interquartile mean over seeds.",
        "Gap to the clairvoyant agent": "100 × (its return − the agent's) / |its return|. It searches plans against "
        "the true future, with a limited horizon: it is a mark to aim at, not a bound.",
        "Intervals": f"{100 * result.level:.0f}%, by Student's t over seeds, for means and ratios of skewed figures on "
        "a log scale; differences and ratios are paired by seed: every agent meets the same arrivals and noise.",
        "Dominates": "No worse in the priority slice's loss and in the others' loss, and better in one. Worse and "
        f"better mean that the paired interval excludes zero and the difference exceeds {result.tie_pct:g} points.",
        BEST: "The setting with the fewest weighted seconds of broken promises on the very seeds that it is judged "
        "on, which favours it.",
    }


def _reproduce(evaluation: Evaluation) -> str:
    p = evaluation.provenance
    facts = {
        "Machine": p.machine,
        "Versions": ", ".join(f"{name} {version}" for name, version in p.versions.items()),
        "Seeds": ", ".join(f"{r.scenario}: seed {r.seed}, {r.seeds} lanes" for r in evaluation.scenarios),
    }
    return (
        f"<pre>{escape(p.command)}\nslicepilot report RESULTS --output report.html</pre>{definitions(facts.items())}"
        "<p class=note>The first command runs every agent again; the second renders a saved folder.</p>"
    )
