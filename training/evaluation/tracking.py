"""An evaluation in MLflow: a run for the comparison, and under it a run for each candidate, rules and fixed settings
included."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.reports.page import svg_files
from slicepilot.training.runs.datasets import EVALUATION, scenario_dataset
from slicepilot.training.runs.labels import RunLabels, provenance
from slicepilot.training.runs.tracking import Tracker, finite_only

from . import plots
from .axes import AXES, RELATIONS
from .comparison import RIVALS
from .config import EvaluationConfig
from .report import MOST_DETAILED, render
from .results import ARRAYS_FILE, RESULTS_FILE, Evaluation
from .suite import IN_JSON, against, beside_rivals

MOST_DATASETS = 100


def log_evaluation(
    evaluation: Evaluation,
    scenarios: Sequence[Scenario],
    config: EvaluationConfig,
    labels: RunLabels,
    results: Path | None = None,
) -> str:
    """Log an evaluation to MLflow; returns the id of the comparison's run.

    A candidate's metrics are named ``SCENARIO/FIGURE``, ``SCENARIO/over_RIVAL/AXIS``, and ``FIGURE`` alone for the mean
    over scenarios; where its policy was logged, MLflow shows them with the model, too. The comparison has report,
    pictures and results as files.

    Args:
        scenarios: as they were played.
        results: folder with the files of `slicepilot.training.evaluation.results.save`.

    Raises:
        ConfigError: the tracking server does not answer at first.
        FailureError: something could not be written.
    """
    names = ", ".join(played.name for played in scenarios[:3]) + (" and others" if len(scenarios) > 3 else "")
    tracker = Tracker(
        labels.name("evaluate", config.seed), tags=provenance(f"scenarios {names}", {}) | dict(labels.tags)
    )
    with tracker.whole():
        tracker.parameters(
            {
                "scenarios": ", ".join(played.name for played in scenarios),
                "agents": ", ".join(config.agents),
                "seeds": config.seeds,
                "seed": config.seed,
                "backend": config.backend,
                "reward": config.reward,
            }
        )
        tracker.datasets([scenario_dataset(played, EVALUATION) for played in scenarios[:MOST_DATASETS]])
        roles: dict[str, str] = {}
        for agent in (agent for result in evaluation.scenarios for agent in result.rivals):
            roles.setdefault(agent.name, agent.role)
        for name, role in roles.items():
            known = evaluation.candidates.get(name, {})
            tags = {"role": role, "digest": known.get("digest"), "trained_by": known.get("run_id")}
            parameters = {"agent": name, "role": role, **known}
            tracker.part(name, tags | dict(labels.tags), parameters, _figures(evaluation, name), known.get("digest"))
        tracker.text("report.html", render(evaluation))
        for name, picture in _pictures(evaluation):
            tracker.text(f"pictures/{name}.svg", picture)
        if results is not None:
            for file in (RESULTS_FILE, ARRAYS_FILE):
                tracker.artifact(results / file)
    return tracker.run_id


def _figures(evaluation: Evaluation, name: str) -> dict[str, float]:
    """A candidate's metrics."""
    figures: dict[str, float] = {}
    sums: dict[str, list[float]] = {}
    for result in evaluation.scenarios:
        if name not in result.figures:
            continue
        for key in result.agent(name).scores:
            value = result.summary(name, key).value
            figures[f"{result.scenario}/{key}"] = value
            sums.setdefault(key, []).append(value)
        for which in RIVALS:
            if (over := result.over(name, which)) is not None:
                figures |= {f"{result.scenario}/over_{which}/{IN_JSON[axis]}": getattr(over, axis) for axis in AXES}
    figures |= {key: math.fsum(values) / len(values) for key, values in sums.items()}
    if all(name in result.subjects for result in evaluation.scenarios):
        for which in RIVALS:
            if (row := against(evaluation.scenarios, name, which)) is not None:
                figures |= {f"over_{which}/{IN_JSON[axis]}": row.median(axis) for axis in AXES}
                figures |= {f"over_{which}/{relation}": row.share(relation) for relation in RELATIONS}
    return finite_only(figures)


def _pictures(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """The report's pictures, by name, as SVG."""
    panels: dict[str, str] = {}
    results = evaluation.scenarios
    if len(results) > 1:
        for subject in dict.fromkeys(name for result in results for name in result.subjects):
            judged = [result for result in results if subject in result.subjects]
            if rows := beside_rivals(judged, subject):
                panels[f"{subject} against rivals"] = plots.axes_over_scenarios(rows)
    for result in results[:MOST_DETAILED]:
        panels[f"{result.scenario} axes"] = plots.axes_of_agents(result)
        panels[f"{result.scenario} delay"] = plots.delay_ecdf(result)
    for name, panel in panels.items():
        plain = "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in name)[:100]
        for number, svg in enumerate(svg_files(panel), 1):
            yield f"{plain}{f' {number}' if number > 1 else ''}", svg
