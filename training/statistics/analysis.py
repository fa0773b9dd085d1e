"""Run all statistics on delays; results and notes as tables and plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.files import replace_file

from .collect import Delays
from .columns import FILE, baseline_of, in_order
from .comparison import Suite, noisy_neighbour
from .quantile_regression import Regression, regress
from .resampling import RESAMPLES

STUDY_NAMES = {"traffic_class": "ue_traffic"}
"""Names of columns in the published tables that differ from those of tidy tables."""
FEW_ROWS, MAX_LEVELS = 30, 20
"""Fewer rows than these are not regressed, nor are words of which there are more."""
DEPENDENCE = (
    "p values take delays as independent; delays that follow each other are not, so with many of them p says little: "
    "read the differences, their intervals and Cliff's delta"
)


@dataclass(frozen=True)
class Analysis:
    """The results.

    Attributes:
        regression: None where there is nothing to regress on.
        notes: what was left out, sampled or assumed, a sentence each.
    """

    delays: Delays
    suite: Suite
    regression: Regression | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for figures that cannot be computed."""
        delays, suite, regression = self.delays, self.suite, self.regression
        return {
            "value": delays.columns.value,
            "unit": delays.columns.unit,
            "by": delays.columns.by,
            "baseline": suite.baseline,
            "rows": delays.read,
            "rows_without_delay": delays.missing,
            "share_analysed": delays.share,
            "resamples": suite.resamples,
            "seed": suite.seed,
            "groups": suite.description_rows(delays.columns.by),
            "comparisons": suite.comparison_rows(),
            "regression": None if regression is None else _regression_json(regression, delays),
            "notes": list(self.notes),
        }

    def write_tables(self, folder: Path) -> list[Path]:
        """The tables as CSV files, named as those in ``data/reference`` are, as are their columns; raises OSError."""
        columns = self.delays.columns
        groups = self.suite.description_rows(STUDY_NAMES.get(columns.by, columns.by))
        tables = {f"{columns.by}_{columns.value}": groups}
        tables["group_tests"] = self.suite.comparison_rows()
        if self.regression is not None:
            tables["_".join(filter(None, ["quantile_regression", columns.unit]))] = self.regression.rows()
        paths = []
        for name, rows in tables.items():
            if rows:
                paths.append(folder / f"{name}.csv")
                replace_file(paths[-1], _csv(rows).encode())
        return paths


def analyse(
    delays: Delays,
    baseline: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Analysis:
    """The suite of all groups against a baseline, and the regression on all covariates.

    The baseline is a group [default: a group named like a baseline, else the first]. Other arguments are as in
    `slicepilot.training.statistics.comparison.noisy_neighbour`.

    Raises:
        ConfigError: no such baseline, or it has fewer than two delays.
    """
    named = baseline_of(delays.groups, baseline)
    groups = {name: values for name, values in delays.groups.items() if len(values) > 1 or name == named}
    suite = noisy_neighbour(groups, named, delays.columns.unit, resamples, seed, lambda part: on_progress(0.8 * part))
    notes = _notes(delays, suite, baseline)
    regression, said = _regress(delays, named, lambda part: on_progress(0.8 + 0.2 * part))
    return Analysis(delays, suite, regression, (*notes, *said, DEPENDENCE))


def _notes(delays: Delays, suite: Suite, baseline: str | None) -> list[str]:
    columns, notes = delays.columns, []
    if baseline is None:
        alone = "one group, nothing to compare"
        named = f"the baseline is {suite.baseline}; --baseline names another"
        notes.append(alone if len(delays.groups) == 1 else named)
    if delays.missing:
        notes.append(f"{delays.missing:,} rows have no {columns.value} or no {columns.by} and were left out")
    if delays.share < 1:
        kept = sum(map(len, delays.groups.values()))
        notes.append(f"sampled: {kept:,} of {delays.read:,} delays, drawn at random, one in {1 / delays.share:,.0f}")
    left_out = [name for name in delays.groups if name not in {d.group for d in suite.descriptions}]
    if left_out:
        notes.append(f"groups of one delay were left out: {', '.join(left_out)}")
    return notes


def _regress(
    delays: Delays, baseline: str, on_progress: Callable[[float], None]
) -> tuple[Regression | None, list[str]]:
    columns, rows, notes = delays.columns, delays.rows, list(delays.notes)
    known = np.ones(len(rows["delay"]), np.bool_)
    loads = [term for term in columns.loads if np.isfinite(rows[term]).any()]
    for term in loads:
        known &= np.isfinite(rows[term])
    covariates: dict[str, Any] = {term: rows[term][known] for term in loads}
    references: dict[str, str] = {}
    for name in ((FILE,) if columns.by_file else ()) + columns.kinds:
        words = rows["group" if columns.by_file and name == FILE else name][known]
        levels = in_order(set(words) - {""})
        if len(levels) > MAX_LEVELS:
            notes.append(f"{name} has {len(levels)} levels and was left out of the regression")
        elif len(levels) > 1:
            covariates[name] = np.where(words == "", "unknown", words)
            references[name] = baseline if name == columns.by else baseline_of(levels)
    count = int(known.sum())
    if not covariates or count < FEW_ROWS:
        notes.append(f"no regression: {count:,} rows with {len(covariates)} columns that may explain the delays")
        return None, notes
    try:
        regression = regress(rows["delay"][known], covariates, references, on_progress=on_progress)
    except ConfigError as error:
        return None, [*notes, f"no regression: {error}"]
    if count < delays.read:
        notes.append(f"regression on {count:,} of {delays.read:,} rows" + _why(delays, count))
    notes += [f"{name} was left out of the regression: {why}" for name, why in regression.dropped.items()]
    return regression, notes


def _why(delays: Delays, count: int) -> str:
    why = []
    shares = delays.rows_shares
    if min(shares.values()) < 1:
        scarcest = min(shares, key=lambda name: shares[name])
        fewer = "of large groups fewer, " if len(set(shares.values())) > 1 else ""
        of = f" of {scarcest}" if fewer else ""
        why.append(f"drawn at random, {fewer}one in {1 / shares[scarcest]:,.0f}{of}")
    if count < len(delays.rows["delay"]):
        why.append("that have all columns")
    return f", {' and '.join(why)}" if why else ""


def _regression_json(regression: Regression, delays: Delays) -> dict[str, Any]:
    return {
        "terms": {
            c.term.name: {
                "column": delays.columns.loads.get(c.term.covariate, c.term.covariate),
                "level": c.term.level,
                "reference": regression.references.get(c.term.covariate),
                "scale": c.term.scale,
            }
            for c in regression.fits[0].coefficients
        },
        "fits": [
            {
                "quantile": fit.quantile,
                "n": fit.n,
                "intercept": fit.intercept,
                "coefficients": {
                    c.term.name: {"slope": c.slope, "stderr": c.stderr, "beta": c.beta, "p": c.p}
                    for c in fit.coefficients
                },
            }
            for fit in regression.fits
        ],
        "dropped": dict(regression.dropped),
    }


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
