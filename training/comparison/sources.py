"""Candidates of a comparison: runs, bundles, sweeps and evaluations, read from their folders."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.learned.files import SUMS_FILE, BundleFiles
from slicepilot.configs import ConfigError
from slicepilot.configs.reading import read_file
from slicepilot.configs.text import cleaned
from slicepilot.training.evaluation.results import RESULTS_FILE, Evaluation, read
from slicepilot.training.runs.record import METRICS_FILE, RUN_FILE
from slicepilot.training.runs.tracking import finite_only, flattened

SWEEP_FILE, TRIALS = "sweep.json", "trials"
MOST_RUN_BYTES, MOST_METRICS_BYTES = 1 << 20, 64 << 20
MOST_COMPARED = 200
EXPECTED = "expected the folder of a run, bundle, sweep or evaluation, or models:/NAME@ALIAS"

Curve = tuple[list[float], list[float]]
"""Steps and values."""


@dataclass(frozen=True)
class Candidate:
    """A run, bundle, or agent of an evaluation.

    Attributes:
        name: unique among those that are compared.
        kind: ``run``, ``bundle`` or ``agent``.
        folder: where it was read from.
        digest: of its bundle; None without a bundle.
        facts: time, user, source, code revision and so on, as texts.
        parameters: by dotted names.
        figures: of the whole run: its curves' last values, estimates, scores as ``SCENARIO/FIGURE``.
        curves: by name.
    """

    name: str
    kind: str
    folder: str
    digest: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)


def read_all(folders: Sequence[tuple[str, Path]]) -> list[Candidate]:
    """All candidates, in the order of their folders; scores of a policy go to the run that has made it.

    Args:
        folders: names for people, and paths.

    Raises:
        ConfigError: a folder of another kind, or damaged; fewer than two candidates, or more than `MOST_COMPARED`.
    """
    trained: list[Candidate] = []
    evaluated: list[Candidate] = []
    for name, folder in folders:
        if (folder / RESULTS_FILE).is_file():
            evaluation = read(folder)
            agents = dict.fromkeys(agent.name for result in evaluation.scenarios for agent in result.rivals)
            evaluated += [_of_agent(evaluation, agent, folder) for agent in agents]
        elif (folder / SWEEP_FILE).is_file():
            trials = sorted(path.parent for path in (folder / TRIALS).glob(f"*/{RUN_FILE}"))
            trained += [_of_run(trial, f"{name}/{trial.name}") for trial in trials]
        elif (folder / RUN_FILE).is_file():
            trained.append(_of_run(folder, name))
        elif (folder / SUMS_FILE).is_file():
            trained.append(_of_bundle(folder, name))
        else:
            raise ConfigError(f"run = {str(folder)!r}: none of {RUN_FILE}, {SUMS_FILE}, {RESULTS_FILE}; {EXPECTED}")
    result = _unique(_with_scores(trained, evaluated))
    if not 2 <= len(result) <= MOST_COMPARED:
        raise ConfigError(f"run: {len(result)} to compare; expected 2 to {MOST_COMPARED}")
    return result


def differing(candidates: Iterable[Candidate]) -> dict[str, list[str | None]]:
    """Parameters that differ among candidates with parameters: values in their order, None for missing values."""
    given = [candidate for candidate in candidates if candidate.parameters]
    names = dict.fromkeys(name for candidate in given for name in candidate.parameters)
    values = {name: [candidate.parameters.get(name) for candidate in given] for name in names}
    return {name: row for name, row in values.items() if len(set(row)) > 1}


def _of_run(folder: Path, name: str) -> Candidate:
    """A run's record, and the digest of the bundle that it has made."""
    document = _json(folder / RUN_FILE)
    try:
        facts = {
            "run": str(document["name"]),
            "status": str(document["status"]),
            "started": str(document["started"]),
            "user": str(document["user"]),
            "source": str(document["source"]),
            "code": str(document["git_revision"] or ""),
            "from": ", ".join(f"{key} {value}" for key, value in document["from"].items()),
            "datasets": ", ".join(f"{item['name']} ({item['digest'][:12]})" for item in document["datasets"]),
            "tags": ", ".join(f"{key}={value}" for key, value in document["tags"].items()),
            "model": str(document["model"] or ""),
        }
        summary, parameters = document["summary"], document["parameters"]
        figures = {key: value for key, value in summary.items() if isinstance(value, (int, float))}
        facts |= {key: str(value) for key, value in summary.items() if isinstance(value, str)}
        parameters = _texts(flattened(parameters))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"run = {str(folder)!r}: {RUN_FILE} is damaged") from error
    curves = _curves(folder / METRICS_FILE)
    last = {key: values[-1] for key, (_, values) in curves.items()}
    bundle = folder / "bundle"
    digest = BundleFiles.read(bundle).digest if (bundle / SUMS_FILE).is_file() else None
    shown = {key: cleaned(value) for key, value in facts.items() if value}
    return Candidate(name, "run", str(folder), digest, shown, parameters, finite_only(last | figures), curves)


def _of_bundle(folder: Path, name: str) -> Candidate:
    files = BundleFiles.read(folder)
    record: TrainingRecord = PolicyBundle.of(files).training
    facts = {"source": record.source, "code": record.git_revision or "", "algorithm": record.algorithm}
    figures = {"env_steps": float(record.env_steps), "train_s": record.train_s}
    parameters = _texts(flattened(record.config)) | {"seed": str(record.seed)}
    return Candidate(name, "bundle", str(folder), files.digest, facts, parameters, figures)


def _of_agent(evaluation: Evaluation, name: str, folder: Path) -> Candidate:
    """An agent of an evaluation that is no reference, a rule or a fixed setting included."""
    known = evaluation.candidates.get(name, {})
    figures: dict[str, float] = {}
    role = "agent"
    for result in evaluation.scenarios:
        if name in result.figures:
            agent = result.agent(name)
            role = agent.role
            figures |= {f"{result.scenario}/{key}": result.summary(name, key).value for key in agent.scores}
    facts = {"role": role} | {key: str(known[key]) for key in ("algorithm", "source") if known.get(key)}
    parameters = _texts(flattened(known.get("training", {})))
    return Candidate(name, "agent", str(folder), known.get("digest"), facts, parameters, finite_only(figures))


def _with_scores(trained: list[Candidate], evaluated: list[Candidate]) -> list[Candidate]:
    """Add the scores of evaluations to runs and bundles with the same digest; then append the other agents."""
    scores: dict[str, dict[str, float]] = {}
    for agent in evaluated:
        if agent.digest is not None:
            scores[agent.digest] = scores.get(agent.digest, {}) | agent.figures
    own = [dataclasses.replace(item, figures=item.figures | scores.get(item.digest or "", {})) for item in trained]
    known = {item.digest for item in trained if item.digest}
    return [*own, *(agent for agent in evaluated if agent.digest not in known)]


def _unique(candidates: list[Candidate]) -> list[Candidate]:
    """With names that differ: a name that was given before gets its number."""
    counts: dict[str, int] = {}
    result = []
    for item in candidates:
        number = counts[item.name] = counts.get(item.name, 0) + 1
        result.append(item if number == 1 else dataclasses.replace(item, name=f"{item.name} ({number})"))
    return result


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {cleaned(key): cleaned(str(value)) for key, value in values.items()}


def _curves(path: Path) -> dict[str, Curve]:
    """Curves of a run; steps increase, and of a step that a resumed run repeats the last values count."""
    if not path.is_file():
        return {}
    points: dict[str, dict[float, float]] = {}
    for line in read_file(path, MOST_METRICS_BYTES, f"file {str(path)!r}").splitlines():
        try:
            values = json.loads(line)
            step = float(values.pop("step"))
            values.pop("time_s", None)
            for key, value in values.items():
                if math.isfinite(float(value)):
                    points.setdefault(str(key), {})[step] = float(value)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line that a killed run has left unfinished
    return {key: (sorted(own), [own[step] for step in sorted(own)]) for key, own in points.items()}


def _json(path: Path) -> dict[str, Any]:
    what = f"file {str(path)!r}"
    try:
        document = json.loads(read_file(path, MOST_RUN_BYTES, what))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{what}: not valid JSON") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{what}: expected an object")
    return document
