"""Quantile regression: how quantiles of the delay move with CPU, packet rate, QFI and traffic class.

R. Koenker, G. Bassett, "Regression quantiles", Econometrica 46(1), 1978: the coefficients minimise the mean of
``residual * (q - (residual < 0))``. That is a linear programme; its dual is solved, so that coefficients are exact
whatever the unit (the iteration of statsmodels stops within 1e-6 of the delay's unit). Standard errors are those of
statsmodels: heteroskedasticity-robust, Epanechnikov's kernel, Hall and Sheather's bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import linprog
from statsmodels.regression.quantile_regression import hall_sheather

from slicepilot.configs import ConfigError
from slicepilot.data.intervals import Array

QUANTILES = (0.5, 0.95, 0.99)
EQUAL, INDEPENDENT = 1e-12, 1e-8  # part of a column that must not be constant, nor explained by others
EXPLAINS = 1e-4  # share of a left-out column that another column makes up


@dataclass(frozen=True)
class Term:
    """A column of the regression.

    Attributes:
        name: the covariate, or the level of a categorical covariate, with the covariate's name in front where the level
            is a number: ``cpu``, ``qfi9``, ``constant_rate``.
        covariate: where it comes from.
        level: of a categorical covariate.
        scale: standard deviation of a number, 1 for a level: what `Coefficient.beta` is the effect of.
    """

    name: str
    covariate: str
    level: str | None
    scale: float


@dataclass(frozen=True)
class Coefficient:
    """A term's effect on a quantile of the delay.

    Attributes:
        slope: change of the delay per unit of the covariate; of a level, against the reference level.
        stderr: of the slope; None where the tail is too thin, as ``p`` is.
        p: two-sided, that the slope is 0.
    """

    term: Term
    slope: float
    stderr: float | None
    p: float | None

    @property
    def beta(self) -> float:
        """Change of the delay per standard deviation of a number, or from the reference level: sizes compare."""
        return self.slope * self.term.scale


@dataclass(frozen=True)
class Fit:
    """One quantile's regression on n values; ``intercept`` is the quantile with all numbers 0 in reference levels."""

    quantile: float
    n: int
    intercept: float
    coefficients: tuple[Coefficient, ...]


@dataclass(frozen=True)
class Regression:
    """All quantiles'.

    Attributes:
        references: reference level of each categorical covariate.
        dropped: what was left out, by name, and why.
    """

    fits: tuple[Fit, ...]
    references: Mapping[str, str]
    dropped: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """The study's table: quantile, n, then ``TERM_beta`` and ``TERM_p`` of each term."""
        return [
            {"quantile": fit.quantile, "n": fit.n}
            | {f"{c.term.name}_{kind}": getattr(c, kind) for c in fit.coefficients for kind in ("beta", "p")}
            for fit in self.fits
        ]


def regress(
    delays: npt.ArrayLike,
    covariates: Mapping[str, npt.NDArray[Any]],
    references: Mapping[str, str] | None = None,
    quantiles: Sequence[float] = QUANTILES,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Regression:
    """Regress quantiles of delays on covariates.

    Args:
        delays: (N,), finite.
        covariates: by name (N,): finite numbers, or texts, which are levels of a categorical covariate.
        references: reference level of categorical covariates [default: the most frequent level].
        quantiles: each inside of (0, 1).
        on_progress: called with the part that is done, 0..1.

    Raises:
        ConfigError: a covariate has no such reference level, or there are fewer values than terms.
    """
    y = np.asarray(delays, np.float64)
    columns, terms, chosen = _design(covariates, references or {})
    kept, dropped = _independent(columns, terms)
    terms = [terms[i] for i in kept]
    design = np.column_stack([np.ones_like(y), *(columns[i] for i in kept)])
    if len(y) <= design.shape[1]:
        raise ConfigError(f"delays: {len(y)} values: expected more than {design.shape[1]}, the number of terms")
    fits = []
    for done, level in enumerate(quantiles, 1):
        fits.append(_fit(y, design, terms, level))
        on_progress(done / len(quantiles))
    return Regression(tuple(fits), chosen, dropped)


def _design(
    covariates: Mapping[str, npt.NDArray[Any]], references: Mapping[str, str]
) -> tuple[list[Array], list[Term], dict[str, str]]:
    """Columns and terms; a categorical covariate has a column for each level but its reference."""
    columns: list[Array] = []
    terms: list[Term] = []
    chosen: dict[str, str] = {}
    for name, column in covariates.items():
        if np.issubdtype(column.dtype, np.number):
            values = column.astype(np.float64)
            columns.append(values)
            terms.append(Term(name, name, None, float(values.std())))
            continue
        levels, codes, counts = np.unique(column, return_inverse=True, return_counts=True)
        words = [str(level) for level in levels]
        reference = references.get(name, words[int(np.argmax(counts))])
        if reference not in words:
            raise ConfigError(f"{name} = {reference!r}: expected a reference of {', '.join(words)}")
        chosen[name] = reference
        for index, word in enumerate(words):
            if word != reference:
                columns.append((codes == index).astype(np.float64))
                terms.append(Term(_level_name(name, word, terms), name, word, 1.0))
    return columns, terms, chosen


def _level_name(covariate: str, level: str, taken: Sequence[Term]) -> str:
    slug = re.sub(r"\W+", "_", level).strip("_").lower()
    if not slug[:1].isalpha():
        return f"{covariate}{slug}"
    return slug if slug not in {term.name for term in taken} else f"{covariate}_{slug}"


def _independent(columns: Sequence[Array], terms: Sequence[Term]) -> tuple[list[int], dict[str, str]]:
    """Which columns say something that the constant and the others do not, and why the rest was left out.

    Levels come first (Gram-Schmidt, twice): of groups and a number that only tells these apart, the groups stay.
    """
    basis: list[Array] = []
    kept: list[int] = []
    dropped: dict[str, str] = {}
    for index in sorted(range(len(columns)), key=lambda i: terms[i].level is None):
        column = columns[index]
        rest = column - column.mean()
        length = float(np.linalg.norm(rest))
        if length <= EQUAL * float(np.linalg.norm(column)):
            dropped[terms[index].name] = "constant"
            continue
        rest /= length
        for _ in range(2):
            for axis in basis:
                rest = rest - (axis @ rest) * axis
        left = float(np.linalg.norm(rest))
        if left > INDEPENDENT:
            basis.append(rest / left)
            kept.append(index)
        else:
            same = _explaining(column, [columns[i] for i in kept])
            dropped[terms[index].name] = f"collinear with {', '.join(terms[kept[i]].name for i in same)}"
    return sorted(kept), dropped


def _explaining(column: Array, others: Sequence[Array]) -> list[int]:
    """Of which of the others, independent of each other, a column (N,) is made but for a constant."""
    design = np.column_stack([other - other.mean() for other in others])
    sizes = np.linalg.norm(design, axis=0)
    centred = column - column.mean()
    shares = np.linalg.lstsq(design / sizes, centred / np.linalg.norm(centred), rcond=None)[0]
    return np.flatnonzero(np.abs(shares) > EXPLAINS).tolist()


def _fit(y: Array, design: Array, terms: Sequence[Term], level: float) -> Fit:
    coefficients = solve(y, design, level)
    residuals = y - design @ coefficients
    residuals[np.abs(residuals) < INDEPENDENT * y.std()] = 0.0  # as many as there are terms lie on the fit
    deviations = standard_errors(y, design, residuals, level)
    freedom = len(y) - design.shape[1]
    results = []
    for term, slope, deviation in zip(terms, coefficients[1:], deviations[1:], strict=True):
        p = float(2.0 * stats.t.sf(abs(slope) / deviation, freedom)) if deviation > 0 else None
        results.append(Coefficient(term, float(slope), float(deviation) if deviation > 0 else None, p))
    return Fit(level, len(y), float(coefficients[0]), tuple(results))


def solve(y: Array, design: Array, level: float) -> Array:
    """Coefficients (K,) of a quantile of y (N,) on the columns of ``design`` (N, K), the first of them constant.

    Raises:
        ConfigError: the solver gives up.
    """
    scaled, centre, spread = _scaled(design)
    middle, unit = y.mean(), y.std() or 1.0
    result = linprog(
        (middle - y) / unit, A_eq=scaled.T, b_eq=(1.0 - level) * scaled.sum(axis=0), bounds=(0.0, 1.0), method="highs"
    )
    if not result.success:
        raise ConfigError(f"delays: no regression at quantile {level:g}: {result.message}: expected other covariates")
    results = -result.eqlin.marginals * unit / spread
    results[0] += middle - centre @ results
    return np.asarray(results, np.float64)


def _scaled(design: Array) -> tuple[Array, Array, Array]:
    """All columns but the first with mean 0 and deviation 1, as solvers work to absolute tolerances; with both."""
    centre, spread = design.mean(axis=0), design.std(axis=0)
    centre[0], spread[0] = 0.0, 1.0
    return (design - centre) / spread, centre, spread


def standard_errors(y: Array, design: Array, residuals: Array, level: float) -> Array:
    """Robust standard errors of the slopes (K,), NaN for the constant's.

    All are NaN where the bandwidth around the quantile leaves 0..1: the tail is too thin. (W. Greene, "Econometric
    Analysis", 6th ed., 2008, section 14.3; P. Hall, S. Sheather, "On the distribution of a Studentized quantile",
    J. R. Statist. Soc. B 50(3), 1988.)
    """
    nothing = np.full(design.shape[1], np.nan)
    around = hall_sheather(len(y), level)
    if not 0.0 < level - around < level + around < 1.0:
        return nothing
    quartiles = np.quantile(residuals, [0.25, 0.75])
    spread = min(y.std(), (quartiles[1] - quartiles[0]) / 1.34)
    width = spread * (stats.norm.ppf(level + around) - stats.norm.ppf(level - around))
    near = residuals[np.abs(residuals) < width]
    if not len(near):
        return nothing
    density = 0.75 * np.sum(1.0 - (near / width) ** 2) / (len(y) * width)
    weights = np.where(residuals > 0, level / density, (1.0 - level) / density) ** 2
    scaled, _, scale = _scaled(design)
    inverse = np.linalg.inv(scaled.T @ scaled)
    deviations = np.sqrt(np.diag(inverse @ (scaled.T * weights) @ scaled @ inverse)) / scale
    return np.concatenate([nothing[:1], deviations[1:]])
