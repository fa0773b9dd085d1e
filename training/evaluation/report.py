"""An evaluation as one HTML file to read."""

from __future__ import annotations

from collections.abc import Iterable

from slicepilot.training.reports.page import bullets, definitions, escape, page, table

from . import plots
from .axes import (
    AXES,
    BEST_EFFORT_BETTER,
    BEST_EFFORT_NOT_WORSE,
    BROKEN_BETTER,
    BROKEN_NOT_WORSE,
    CPU_BETTER,
    CPU_NOT_WORSE,
    Over,
    shown,
)
from .comparison import RIVALS, RULE, AgentResult, ScenarioResult
from .results import Evaluation
from .scores import BEST_EFFORT_LOSS, BROKEN_S, CPU_WASTED, EDGE_WORK
from .suite import beside_rivals
from .summary import count, figures_shown, headline, sentences, short_list, too_few, worst_of

MOST_DETAILED = 8
"""With more scenarios a page leaves out delays and knobs over time, or it would have megabytes."""
METRICS = (
    ("slice1_loss_pct", "Priority slice's loss, %", 1.0, 1),
    ("others_loss_pct", "Others' loss, %", 1.0, 1),
    ("slice1_delay_p99_us", "Priority slice's delay p99, ms", 1e-3, 1),
    (BROKEN_S, "Promises broken, weighted s", 1.0, 1),
    (BEST_EFFORT_LOSS, "Best effort's loss, %", 1.0, 1),
    (CPU_WASTED, "CPU wasted, core-s", 1.0, 0),
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
ON_AXES = ("Promises broken", "Best effort, points", "CPU wasted")
RELATIONS_HEAD = ("Scenario", f"Against {RULE}", *ON_AXES, BEST, "Against it", *ON_AXES)
KINDS = {"dominates": "good", "dominated": "bad"}


def render(evaluation: Evaluation) -> str:
    """The whole document."""
    results = evaluation.scenarios
    subjects = list(dict.fromkeys(name for r in results for name in r.subjects))
    sections = [
        ("verdict", "Summary", _verdict(evaluation, subjects)),
        *((f"scenario-{r.scenario}", r.scenario, _scenario(r, len(results))) for r in results),
        ("fit", "How well the simulator fits", _fit(evaluation)),
        ("terms", "What the figures mean", definitions(_terms(results[0]).items())),
        ("reproduce", "How to reproduce", _reproduce(evaluation)),
    ]
    seeds = "/".join(map(str, sorted({r.seeds for r in results})))
    seeds += " seed" if seeds == "1" else " seeds"
    return page(
        ": ".join(filter(None, ["slicepilot evaluation", ", ".join(subjects)])),
        f"{count(len(results), 'scenario')}, {seeds} each, the same for every agent. {evaluation.provenance.created}",
        sections,
        f"slicepilot {evaluation.provenance.versions.get('slicepilot', '')}",
    )


def _verdict(evaluation: Evaluation, subjects: list[str]) -> str:
    """Sentences, the picture of the three axes and a row a scenario, for every subject."""
    warning = too_few(evaluation.scenarios)
    parts = [f'<p class="note">{escape(warning)}.</p>'] if warning else []
    for subject in subjects:
        results = [r for r in evaluation.scenarios if subject in r.subjects]
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in headline(results, subject))
        parts.append(f'<div class="verdict">{said}</div>')
        if len(results) > 1:
            rows = beside_rivals(results, subject)
            parts.append(plots.axes_over_scenarios(rows) if rows else "")
            parts += [f'<p class="note">{escape(worst_of(row))}</p>' for row in rows]
            parts.append(table(RELATIONS_HEAD, [_relations_row(r, subject) for r in results], (BEST,)))
    if not subjects:
        parts.append(
            '<div class="verdict"><p>No agent is judged: this compares fixed settings and heuristics.</p>'
            "<p>Name a trained policy with <code>--bundle</code> to judge it.</p></div>"
        )
    if len(evaluation.scenarios) == 1:
        parts.append(plots.axes_of_agents(evaluation.scenarios[0]))
    return "\n".join(parts)


def _relations_row(result: ScenarioResult, subject: str) -> list[str]:
    link = f'<a href="#scenario-{escape(result.scenario)}">{escape(result.scenario)}</a>'
    rule, fixed = (_relation_cells(result.over(subject, which)) for which in RIVALS)
    return [link, *rule, escape(result.best_fixed or "–"), *fixed]


def _relation_cells(over: Over | None) -> list[str]:
    if over is None:
        return ["–"] * (1 + len(ON_AXES))
    word = f'<span class="{KINDS.get(over.relation, "")}">{over.relation}</span>'
    return [word, *(shown(axis, getattr(over, axis)).replace("-", "−") for axis in AXES)]


def _scenario(result: ScenarioResult, of: int) -> str:
    """A scenario of ``of``; a single scenario's axes are in the summary."""
    short = short_list(result)
    parts = [f"<p>{escape(result.description)}</p>", f'<p class="note">{escape(_facts(result))}</p>']
    if of > 1:
        parts += [bullets(map(escape, sentences(result, name))) for name in result.subjects]
        parts.append(plots.axes_of_agents(result))
    parts.append(_agents_table(result, short))
    if len(short) < len(result.agents):
        full = _agents_table(result, result.agents)
        parts.append(f"<details><summary>All {len(result.agents)} settings and agents</summary>{full}</details>")
    if of > MOST_DETAILED:
        return "\n".join(parts)
    panels = [plots.delay_ecdf(result), *(plots.over_time(result, name) for name in result.featured)]
    parts.append(f'<div class="panels">{"".join(panels)}</div>')
    return "\n".join(parts)


def _facts(result: ScenarioResult) -> str:
    priority = result.priority_index
    window = "the whole run"
    if result.loss_window_s:
        window = f"seconds {result.loss_window_s[0]:g} to {result.loss_window_s[1]:g}, whole-run losses in small print"
    where = "real UPFs on a testbed" if result.backend == "testbed" else f"hardware {result.hardware}"
    return (
        f"{len(result.slice_names)} slices on {where}, {result.duration_s:g} s, "
        f"a decision every {result.period_s:g} s, {count(result.seeds, 'seed')}. "
        f"Priority slice: {result.slice_names[priority]} "
        f"(promised {result.committed_mbps[priority]:g} Mbit/s within {result.delay_bound_ms[priority]:g} ms). "
        f"Losses are taken over {window}."
    )


def _agents_table(result: ScenarioResult, agents: Iterable[AgentResult]) -> str:
    ordered = sorted(agents, key=lambda a: (a.name not in result.subjects, a.mean(BROKEN_S)))
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
    if result.loss_window_s and whole != key and whole in agent.scores:
        run = f"{result.summary(agent.name, whole).value:.1f}".replace("-", "−")
        below += f"<small>whole run {run}</small>"
    return f"{value}{below}"


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
        "Best effort": "What all slices carry beyond their promises, over blocks of 2 s. Its loss is against no "
        "control; points are of what no control carries there.",
        "CPU held": "Core-seconds that limits reserve; a slice without a limit counts with all its UPF can use, the "
        "node with no more than it has. Wasted is what of it no slice uses.",
        "Return": "Mean reward per control period; interquartile mean over seeds.",
        "Seeds": "A figure is the mean over seeds, except for the return.",
        "Intervals": f"{100 * result.level:.0f}%, by Student's t over seeds, for means of skewed figures on a log "
        "scale; cut to what is possible, as 0 to the duration of a run.",
        "Dominates": "Not worse on any of the three axes, and better on some. Promises broken: not worse up to "
        f"{BROKEN_NOT_WORSE:g} times the rival's seconds, better up to {BROKEN_BETTER:g} times; best effort: down to "
        f"{BEST_EFFORT_NOT_WORSE:+g} points, from {BEST_EFFORT_BETTER:+g} on; CPU wasted: up to {CPU_NOT_WORSE:g} "
        f"and {CPU_BETTER:g} times. Where an edge application runs, its work counts instead: the rival's over the "
        "agent's own. Equal: neither is worse on any axis.",
        BEST: "Of the fixed settings that break promises least (within 2%), that with most best effort, then that "
        "which wastes least CPU, on the very seeds that it is judged on, which favours it.",
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
