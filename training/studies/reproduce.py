"""Reproduce a study and compare the figures with those it published."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.env.slices import SliceSet

from .study import SOURCES, Effort, Figure, Findings, Row, Source, Store, Study, compare, spearman

STUDIES = ("andrade", "grosvik", "mishra", "moreira")
LEAST_RANKED = 5
"""Rows of an order, below which a correlation says nothing."""
COMPARED: tuple[Source, ...] = ("simulated", "measured", "release")


@dataclass
class Reproduction:
    """A study with its findings by source."""

    study: Study
    sources: dict[Source, Findings] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per row: each source's figure, and the first source's difference from the published figure."""
        result = []
        for row in self.study.rows:
            shown: dict[Source, Figure | None] = {
                name: self.sources[name].values.get(row.key) for name in COMPARED if name in self.sources
            }
            comparable = (figure for name, figure in shown.items() if row.key not in self.sources[name].shown_only)
            result.append(_document(row, shown, next(filter(None, comparable), None)))
        for name, findings in self.sources.items():
            for key, figure in findings.extra.items():
                result.append(_document(Row(key, key, "", None, None), {name: figure}, figure))
        return result

    def verdicts(self) -> list[dict[str, Any]]:
        """A dictionary per finding: whether it holds, and by which figures, in print and in each source."""
        printed = as_figures(self.study.printed())
        result = []
        for finding in self.study.findings:
            verdict: dict[str, Any] = {"claim": finding.claim, "criterion": finding.criterion}
            evidence = {}
            for name in SOURCES:
                findings = self.sources.get(name)
                values = printed if name == "published" else findings.values if findings else {}
                try:
                    verdict[name], evidence[name] = finding.holds(values)
                except KeyError:  # a figure is missing
                    verdict[name] = None
            if verdict["published"] is None:
                verdict["published"] = finding.published
            expected = verdict["published"] is not False  # also of what the study does not say
            disagree = any(verdict[name] is not None and verdict[name] != expected for name in COMPARED)
            result.append(verdict | {"evidence": evidence, "cause": finding.cause if disagree else ""})
        return result

    def ranks(self) -> list[dict[str, Any]]:
        """Spearman's rank correlation of each source's figures with the printed figures, for each order."""
        printed = self.study.printed()
        result = []
        for text, keys in self.study.orders.items():
            for source, findings in self.sources.items():
                known = [key for key in keys if key in printed and key in findings.values]
                if source in COMPARED and len(known) >= LEAST_RANKED:
                    pairs = np.asarray([[printed[key], findings.values[key].value] for key in known], np.float64)
                    result.append({"order": text, "source": source, "rows": len(known), "spearman": spearman(pairs)})
        return result

    def document(self) -> dict[str, Any]:
        """As `slicepilot reproduce --json` prints it."""
        remarks = [remark for findings in self.sources.values() for remark in findings.remarks]
        return {
            "study": self.study.name,
            "citation": self.study.citation,
            "rows": self.rows(),
            "verdicts": self.verdicts(),
            "ranks": self.ranks(),
            "remarks": remarks,
        }

    def csv(self) -> str:
        """The rows as CSV (RFC 4180)."""
        out = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(out, [name for name in rows[0] if name != "interval"] + ["low", "high"])
        writer.writeheader()
        for row in rows:
            low, high = row.pop("interval") or (None, None)
            writer.writerow(row | {"low": low, "high": high})
        return out.getvalue()


def _document(row: Row, shown: Mapping[Source, Figure | None], judged: Figure | None) -> dict[str, Any]:
    """A row as JSON: each source's figure, and the difference of the one that is judged."""
    difference, outcome = compare(row, judged)
    return {
        "row": row.key,
        "text": row.text,
        "unit": row.unit,
        "published": row.published,
        **{name: figure.value if (figure := shown.get(name)) else None for name in COMPARED},
        "interval": None if judged is None or judged.low is None else [judged.low, judged.high],
        "difference_pct": difference,
        "verdict": outcome,
        "cause": row.cause if outcome == "differs" else "",
    }


def as_figures(values: Mapping[str, float]) -> dict[str, Figure]:
    """Plain numbers as figures without intervals."""
    return {key: Figure(value) for key, value in values.items()}


def study_of(name: str) -> Study:
    """A study by name; raises ConfigError with the known names."""
    if name not in STUDIES:
        raise ConfigError(f"study: unknown name {name!r}; {did_you_mean(name, STUDIES)}")
    study: Study = import_module(f".{name}.declared", __package__).STUDY
    return study


def reproduce(
    name: str, where: Sequence[str], data: Path | None, effort: Effort, folder: Path | None, resume: bool
) -> Reproduction:
    """Run a study's experiments and read its release.

    Args:
        where: ``simulator``, ``testbed``, or both.
        data: folder of the study's release.
        folder: stores results for ``resume``; None stores nothing.

    Raises:
        ConfigError: an unknown study or agent, an incomplete release.
        OSError: the folder cannot be written.
    """
    study = study_of(name)
    result = Reproduction(study)
    # What can be wrong is found out before minutes of runs: names of agents, the release, the folder.
    for agent in effort.agents:
        make(agent, SliceSet.from_yaml("grosvik"))
    mark = f"{'quick' if effort.quick else 'whole'}-{effort.seed}"

    def store(source: Source) -> Store:
        return Store(None if folder is None else folder / f"{source}-{mark}.jsonl", resume)

    release = None if data is None else study.release(data, effort)
    simulated = store("simulated") if "simulator" in where else None
    measured = store("measured") if "testbed" in where else None
    if simulated is not None:
        result.sources["simulated"] = study.simulate(effort, simulated)
    if measured is not None:
        result.sources["measured"] = study.measure(effort, measured)
    if release is not None:
        result.sources["release"] = release
    return result
