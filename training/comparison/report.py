"""A comparison as an HTML file: differing parameters, figures, curves."""

from __future__ import annotations

from collections.abc import Sequence

from slicepilot.training.reports.page import COLOURS, DASHES, escape, figure, page, panel, table

from .sources import Candidate, differing

MOST_CURVES, MOST_LINES, MOST_COLUMNS = 24, 12, 12
SCORES = (
    *("slice1_loss_pct", "others_loss_pct", "slice1_delay_p99_us", "sla_violation_s", "best_effort_loss_pct"),
    *("cpu_held_core_s", "cpu_wasted_core_s", "return"),
)


def render(candidates: Sequence[Candidate], created: str) -> str:
    """The whole document."""
    sections = [("runs", "What is compared", _facts(candidates))]
    if rows := differing(candidates):
        sections.append(("parameters", "Parameters that differ", _parameters(candidates, rows)))
    own = [c for c in candidates if training_figures(c)]
    if own:
        sections.append(("figures", "Figures of the runs", _figures(own)))
    sections += [
        (f"scenario-{name}", f"Scenario {name}", _scores(name, candidates)) for name in scenarios_of(candidates)
    ]
    if curves := _curves(candidates):
        sections.append(("curves", "Curves", f'<div class="panels">{"".join(curves)}</div>'))
    title = f"slicepilot comparison: {', '.join(c.name for c in candidates[:4])}"
    title += f" and {len(candidates) - 4} more" if len(candidates) > 4 else ""
    return page(title, f"{len(candidates)} runs, policies and agents. {created}", sections, "slicepilot compare")


def _facts(candidates: Sequence[Candidate]) -> str:
    names = list(dict.fromkeys(key for c in candidates for key in c.facts))
    rows = [
        [escape(c.name), escape(c.kind), escape((c.digest or "")[:12]), *(escape(c.facts.get(n, "")) for n in names)]
        for c in candidates
    ]
    head = ("Name", "Kind", "Bundle", *names)
    return table(head, rows, head[1:])


def _parameters(candidates: Sequence[Candidate], rows: dict[str, list[str | None]]) -> str:
    names = [c.name for c in candidates if c.parameters]
    cells = [[escape(key), *(escape("–" if v is None else v) for v in values)] for key, values in rows.items()]
    return table(("Parameter", *names), cells, names)


def training_figures(candidate: Candidate) -> dict[str, float]:
    """Figures that are not scores of a scenario."""
    scored = scenarios_of([candidate])
    return {key: value for key, value in candidate.figures.items() if key.rpartition("/")[0] not in scored}


def scenarios_of(candidates: Sequence[Candidate]) -> list[str]:
    """Scenarios that any of them was judged on."""
    keys = (key.rpartition("/") for c in candidates for key in c.figures)
    return list(dict.fromkeys(scenario for scenario, _, figure in keys if scenario and figure in SCORES))


def _figures(candidates: Sequence[Candidate]) -> str:
    """A row a figure: there may be dozens, of few runs."""
    names = list(dict.fromkeys(key for c in candidates for key in training_figures(c)))
    rows = [[escape(name), *(_shown(c.figures.get(name)) for c in candidates)] for name in names]
    return table(("Figure", *(c.name for c in candidates)), rows)


def _scores(scenario: str, candidates: Sequence[Candidate]) -> str:
    judged = [c for c in candidates if any(key.startswith(f"{scenario}/") for key in c.figures)]
    keys = [key for key in SCORES if any(f"{scenario}/{key}" in c.figures for c in judged)]
    rows = [[escape(c.name), *(_shown(c.figures.get(f"{scenario}/{key}")) for key in keys)] for c in judged]
    return table(("Agent", *(key.replace("_", " ") for key in keys)), rows)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}".replace("-", "−")


def _curves(candidates: Sequence[Candidate]) -> list[str]:
    """A figure for each curve with several points in some run, curves of most runs first."""
    runs = [c for c in candidates if c.curves][:MOST_LINES]
    counts: dict[str, int] = {}
    for run in runs:
        for key, (steps, _) in run.curves.items():
            counts[key] = counts.get(key, 0) + (len(steps) > 1)
    chosen = sorted((key for key, count in counts.items() if count), key=lambda key: -counts[key])[:MOST_CURVES]
    return [_curve(key, runs) for key in chosen]


def _curve(key: str, runs: Sequence[Candidate]) -> str:
    with figure(2.8) as (drawn, (axes,)):
        for number, run in enumerate(runs):
            if key in run.curves:
                colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
                # A name that begins with an underscore would have no entry in the legend.
                axes.plot(*run.curves[key], color=colour, ls=dash, label=f"\u200b{run.name}"[:60])
        axes.set_title(key)
        axes.set_xlabel("steps")
        axes.legend()
        return panel(drawn, f"{key} by steps", f"{key} of each run")
