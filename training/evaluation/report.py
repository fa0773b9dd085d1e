"""An evaluation as one HTML file to read."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np

from slicepilot.data.intervals import Interval
from slicepilot.training.reports.html_page import bullets, page, picture, table

from . import plots
from .comparison import AgentResult, ScenarioResult, SubjectSummary
from .results import Evaluation
from .scores import EDGE_WORK
from .sentences import count, figures_shown, headline, lost, ratio, sentences, short_list, some_of

MAX_ROWS = 12
METRICS = (
    ("slice1_loss_pct", "Priority slice's loss, %"),
    ("others_loss_pct", "Others' loss, %"),
    ("slice1_delay_p99_us", "Priority slice's delay p99, ms"),
    ("sla_violation_s", "Promises broken, weighted s"),
    ("cpu_held_core_s", "CPU held, core-s"),
    ("churn_pct", "Knobs moved per period, %"),
    ("return", "Return"),
)
EDGE_METRIC = (EDGE_WORK, "Edge application's work, blocks")
ROLES = {
    "learned": "learned",
    "clairvoyant": "sees the future",
    "adaptive": "heuristic",
    "fixed": "",
    "reference": "fewer slices active",
}


def render(evaluation: Evaluation) -> str:
    """The whole document."""
    results = evaluation.scenarios
    sections = [
        ("verdict", "SubjectSummary", _verdict(evaluation)),
        *((f"scenario-{r.scenario}", r.scenario, _scenario(r)) for r in results),
        ("loses", "Where it loses", _where_it_loses(results)),
        ("fit", "How well the simulator fits", _fit(evaluation)),
        ("terms", "What the figures mean", _terms(results)),
        ("reproduce", "How to reproduce", _reproduce(evaluation)),
    ]
    subjects = _subjects(results)
    title = f"slicepilot evaluation: {', '.join(subjects)}" if subjects else "slicepilot evaluation"
    seeds = sorted({r.seeds for r in results})
    return page(
        title,
        f"{count(len(results), 'scenario')}, {'/'.join(map(str, seeds))} seeds each, the same for every agent. "
        f"{evaluation.provenance.created}",
        sections,
        f"slicepilot {evaluation.provenance.versions.get('slicepilot', '')}",
    )


def _subjects(results: Iterable[ScenarioResult]) -> list[str]:
    return list(dict.fromkeys(name for r in results for name in r.subjects))


# -- the verdict ---------------------------------------------------------------------------------------------------


def _verdict(evaluation: Evaluation) -> str:
    results, subjects = evaluation.scenarios, _subjects(evaluation.scenarios)
    parts = []
    for subject in subjects:
        verdicts = {r.scenario: r.verdict(subject) for r in results if subject in r.subjects}
        sentences = headline(subject, verdicts)
        parts.append('<div class="verdict">' + "".join(f"<p>{escape(s)}</p>" for s in sentences) + "</div>")
        parts.append(_cards(subject, verdicts))
        parts.append(_verdict_table(verdicts))
    if not subjects:
        parts.append(
            '<div class="verdict"><p>No agent was put to judgement: this compares fixed settings and heuristics.</p>'
            "<p>Name a trained policy with <code>--bundle</code> to judge it.</p></div>"
        )
    parts.append(_overall(evaluation, subjects))
    return "\n".join(parts)


def _cards(subject: str, verdicts: dict[str, SubjectSummary]) -> str:
    def middle(values: list[float]) -> str:
        return f"{np.median(values):.2f}×" if values else "–"

    gaps = [v.clairvoyant_gap_pct for v in verdicts.values() if v.clairvoyant_gap_pct is not None]
    cards = [
        (
            f"{sum(len(v.dominated) for v in verdicts.values())} / {sum(len(v.fixed) for v in verdicts.values())}",
            "fixed settings dominated, over all scenarios",
        ),
        (
            middle([v.violation_ratio.value for v in verdicts.values() if v.violation_ratio]),
            "time with promises broken, against the best fixed setting of each scenario (median)",
        ),
        (
            middle([v.cpu_ratio.value for v in verdicts.values() if v.cpu_ratio]),
            "CPU held by limits, against the same setting (median)",
        ),
        (f"{np.median(gaps):.1f}%" if gaps else "–", "below the clairvoyant player's return (median)"),
    ]
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{b}</b><span>{s}</span></div>' for b, s in cards)
        + "</div>"
    )


def _verdict_table(verdicts: dict[str, SubjectSummary]) -> str:
    rows = []
    for scenario, v in verdicts.items():
        beaten = escape(some_of(v.beaten_by)) if v.beaten_by else "nobody"
        rows.append(
            f'<tr><th scope="row"><a href="#scenario-{escape(scenario)}">{escape(scenario)}</a></th>'
            f"<td>{len(v.dominated)} of {len(v.fixed)}</td>"
            f'<td class="words">{escape(v.best_fixed or "–")}</td>'
            f"{_ratio_cell(v.violation_ratio)}{_ratio_cell(v.cpu_ratio)}"
            f"<td>{'–' if v.clairvoyant_gap_pct is None else f'{v.clairvoyant_gap_pct:.1f}%'}</td>"
            f'<td class="words">{beaten}</td></tr>'
        )
    head = (
        "Scenario",
        "Fixed settings dominated",
        "Best fixed setting in hindsight",
        "Promises broken, ratio to it",
        "CPU held, ratio to it",
        "Gap to the clairvoyant player",
        "Dominated by",
    )
    return table(head, rows, words=("Best fixed setting in hindsight", "Dominated by"))


def _ratio_cell(found: Interval | None) -> str:
    if found is None:
        return "<td>–</td>"
    kind, word = ("good", " less") if found.high < 1 else ("bad", " more") if found.low > 1 else ("", "")
    return (
        f'<td><span class="{kind}">{ratio(found.value)}{word}</span>'
        f"<small>{ratio(found.low)} to {ratio(found.high)}</small></td>"
    )


def _overall(evaluation: Evaluation, subjects: list[str]) -> str:
    everywhere = set.intersection(*({a.name for a in r.rivals} for r in evaluation.scenarios))
    if len(evaluation.scenarios) < 2 or not everywhere:
        return ""
    names = [a.name for a in evaluation.scenarios[0].rivals if a.name in everywhere]
    summaries = {name: evaluation.overall_return(name) for name in names}
    ranked = sorted(names, key=lambda n: -summaries[n].value)
    chosen = [n for i, n in enumerate(ranked) if i < MAX_ROWS or n in {*subjects, "no-control"}]
    svg = plots.overall(chosen, [summaries[n] for n in chosen], subjects)
    caption = (
        "Interquartile mean over all scenarios and seeds (Agarwal et al., 2021), with the spread inside scenarios. "
        "The return is the mean reward per control period."
    )
    return f'<h3>Over all scenarios</h3><div class="panels">{picture(svg, caption)}</div>'


# -- one scenario --------------------------------------------------------------------------------------------------


def _scenario(result: ScenarioResult) -> str:
    parts = [f"<p>{escape(result.description)}</p>", f'<p class="note">{escape(_facts(result))}</p>']
    parts += [bullets(map(escape, sentences(result, name))) for name in result.subjects]
    short = short_list(result)
    parts.append(_agents_table(result, short))
    if len(short) < len(result.agents):
        full = _agents_table(result, result.agents)
        parts.append(f"<details><summary>All {len(result.agents)} settings and agents</summary>{full}</details>")
    parts.append('<div class="panels">')
    parts.append(
        picture(
            plots.pareto(result),
            "Means over seeds. Numbers are the experiments of Andrade and Wickboldt (2025); hollow: fewer slices "
            "active. The dashed line joins the fixed settings that no other fixed one beats.",
        )
    )
    parts.append(
        picture(
            plots.delay_ecdf(result),
            "From N3 ingress to N6, all seeds. Further left is faster; right of the bound the promise is broken.",
        )
    )
    parts.append(
        picture(
            plots.bars(result, "sla_violation_s", "Promises broken", "weighted seconds per run (less is better)"),
            f"Mean with {100 * result.level:.0f}% interval; the featured agents and those that break promises least.",
        )
    )
    parts.append(
        picture(
            plots.bars(result, "cpu_held_core_s", "CPU held by limits", "core-seconds per run"),
            "What the limits keep from other work on the node; a slice without a limit holds all that its UPF can use.",
        )
    )
    if result.has_edge:
        parts.append(
            picture(
                plots.bars(result, EDGE_WORK, "The edge application's work", "blocks per run (more is better)"),
                "What other work on the node got done with the CPU time that the slices left.",
            )
        )
    parts.append("</div><h3>Over time</h3>")
    parts.append('<div class="panels">')
    parts += [
        picture(plots.over_time(result, name), f"{name} on the first seed; knob rows appear where it moves them.")
        for name in result.featured
    ]
    parts.append("</div>")
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
        cells = "".join(_metric_cell(result, agent, key) for key, _ in metrics)
        rows.append(
            f'<tr class="{"own" if agent.name in result.subjects else ""}"><th scope="row">{escape(agent.name)}'
            f"{f'<span class=tag>{tag}</span>' if tag else ''}</th>{cells}</tr>"
        )
    return table(("Agent", *(title for _, title in metrics)), rows)


def _metric_cell(result: ScenarioResult, agent: AgentResult, key: str) -> str:
    summary = result.summary(agent.name, key)
    scale, digits = {
        "slice1_delay_p99_us": (1e-3, 1),
        "return": (1.0, 3),
        "cpu_held_core_s": (1.0, 0),
        EDGE_WORK: (1.0, 0),
    }.get(key, (1.0, 1))
    value, low, high = (
        f"{scale * x:,.{digits}f}".replace("-", "−") for x in (summary.value, summary.low, summary.high)
    )
    below = f"<small>{low} to {high}</small>" if (low, high) != (value, value) else ""
    whole = key.replace("_loss_pct", "_loss_whole_pct")
    if result.loss_window_s and whole != key:
        run = f"{result.summary(agent.name, whole).value:.1f}".replace("-", "−")
        below += f"<small>whole run {run}</small>"
    return f"<td>{value}{below}</td>"


# -- what surrounds it -----------------------------------------------------------------------------------------------


def _where_it_loses(results: Iterable[ScenarioResult]) -> str:
    items = [
        f"<b>{escape(result.scenario)}</b>, {escape(subject)}: {escape(said)}"
        for result in results
        for subject in result.subjects
        for said in lost(result, subject)
    ]
    if not items:
        return "<p>No agent was put to judgement, or none of its comparisons was lost.</p>"
    note = "Of the settings that are not dominated, the one furthest from it is named for each kind of loss."
    return f'<p class="note">{note}</p>{bullets(items)}'


def _fit(evaluation: Evaluation) -> str:
    if all(result.backend == "testbed" for result in evaluation.scenarios):
        return (
            "<p>Nothing is simulated here: UPFs, packets, knobs and delays are real. Policies were trained in the "
            "simulator.</p>"
        )
    source = (
        "The node is simulated. Where a fit is listed, its parameters are fitted to the published measurements of "
        "Andrade and Wickboldt (JNSM 33(4):90, 2025); what is left over is the error to keep in mind for every figure."
    )
    parts = [f"<p>{source}</p>"]
    for hardware, fit in evaluation.fits.items():
        if fit:
            rows = [
                f'<tr><th scope="row">{escape(k.replace("_", " "))}</th><td>{v:g}</td></tr>' for k, v in fit.items()
            ]
            parts.append(f"<h3>{escape(hardware)}</h3>{table(('Error of the fit', 'Value'), rows)}")
        else:
            parts.append(f"<p><b>{escape(hardware)}</b>: not fitted to measurements; orders of size only.</p>")
    return "\n".join(parts)


def _terms(results: Iterable[ScenarioResult]) -> str:
    first = next(iter(results))
    interval = (
        f"{100 * first.level:.0f}%, by Student's t over seeds, for means and ratios of skewed figures on a log scale"
    )
    terms = {
        "Loss": """How much less was carried than in the reference on the same seed. For the priority slice that is the
            run with no other slice active (experiment 1), for the others no control (experiment 5). Negative: more.""",
        "Delay p99": """99th percentile over time of the per-period p99 delay from N3 ingress to N6, periods weighted by
            the volume carried; on a testbed of all packets of a run. Mean over seeds.""",
        "Promises broken": """Seconds in which a slice carries under 99% of what it was promised, as a mean over 2 s
            (the default averaging window of 3GPP TS 23.501) or a longer control period, or its p99 delay exceeds its
            bound, times its share of all weights, summed over slices.""",
        "CPU held": """Core-seconds that limits reserve; a slice without a limit counts with all its UPF can use, the
            node with no more than it has.""",
        "Return": "Mean reward per control period; interquartile mean over seeds.",
        "Gap to the clairvoyant player": """100 × (it − agent) / |it|, of returns. It searches plans against the
            true future, with a limited horizon: it is a mark to aim at, not a bound.""",
        "Intervals": f"""{interval}; differences and ratios are paired by seed, because every agent meets the same
            arrivals and noise.""",
        "Dominates": f"""No worse in the priority slice's loss and in the others' loss, and better in one. Worse and
            better mean that the paired interval excludes zero and the difference exceeds {first.tie_pct:g} points.""",
        "Best fixed setting in hindsight": """The one with the fewest weighted seconds of broken promises on the very
            seeds it is judged on, which favours it.""",
    }
    return (
        "<dl>"
        + "".join(f"<dt>{escape(k)}</dt><dd>{escape(' '.join(v.split()))}</dd>" for k, v in terms.items())
        + "</dl>"
    )


def _reproduce(evaluation: Evaluation) -> str:
    p = evaluation.provenance
    versions = ", ".join(f"{name} {version}" for name, version in p.versions.items())
    seeds = ", ".join(f"{r.scenario}: seed {r.seed}, {r.seeds} lanes" for r in evaluation.scenarios)
    wall = sum(a.wall_s for r in evaluation.scenarios for a in r.agents)
    return (
        f"<pre>{escape(p.command)}\nslicepilot report RESULTS --output report.html</pre>"
        f"<dl><dt>Machine</dt><dd>{escape(p.machine)}</dd><dt>Versions</dt><dd>{escape(versions)}</dd>"
        f"<dt>Seeds</dt><dd>{escape(seeds)}</dd><dt>Time played</dt><dd>{wall:.0f} s in all</dd></dl>"
        "<p class=note>The first command plays every agent again; the second renders a saved folder.</p>"
    )
