"""The conclusions of Moreira et al. (2026), each test's decision at 5%, with criteria on figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slicepilot.training.studies.study import Finding, Values, read

LEVEL = 0.05
SMALL = 0.147  # of Cliff's delta: below it a difference is negligible (J. Romano et al., 2006)
_NAMES = {"median": "median", "p95": "95th percentile"}
CAUSE = (
    "The study times gtp5g's work on a packet that the kernel has already begun with; from N3 to N6 a packet also "
    "waits for a CPU, and that is what busy neighbours make longer."
)
ONE_QUEUE = "CPU use and packets rise together here, and waiting for the CPU with both."


def _differs(group: str, p: str, difference: str, shorter: bool | None, values: Values) -> tuple[bool, str]:
    """Whether a test decides for a difference of this sign; where ``shorter`` is None, for none."""
    p_value, change = read(values, f"test/{group}/{p}", f"test/{group}/{difference}")
    significant = p_value < LEVEL
    holds = not significant if shorter is None else significant and (change < 0) == shorter
    return holds, f"{difference} {change:+.3g}, p {p_value:.2g}"


def _effect(quantiles: Sequence[str], term: str, sign: int, values: Values) -> tuple[bool, str]:
    """Whether a term's effect on quantiles has a sign and is significant; where ``sign`` is 0, is not."""
    texts, holds = [], True
    for quantile in quantiles:
        beta, p = read(values, *(f"regression/{quantile}/{term}_{kind}" for kind in ("beta", "p")))
        significant = p < LEVEL
        holds &= not significant if sign == 0 else significant and beta * sign > 0
        texts.append(f"{quantile}: {beta:+.3g}, p {p:.2g}")
    return holds, "; ".join(texts)


def _negligible(group: str, values: Values) -> tuple[bool, str]:
    [delta] = read(values, f"test/{group}/cliffs_delta")
    return abs(delta) < SMALL, f"Cliff's delta {delta:+.2f}"


def _tests() -> list[Finding]:
    """The nine decisions of Table IV: median, 95th percentile and Mann-Whitney's test of three kinds of neighbours."""
    decided: dict[tuple[str, str], bool | None] = {
        ("Constant-Rate", "median"): True,
        ("Constant-Rate", "p95"): None,
        ("Multimedia", "median"): True,
        ("Multimedia", "p95"): True,
        ("Anomaly", "median"): None,
        ("Anomaly", "p95"): None,
    }
    result = []
    for (group, statistic), shorter in decided.items():
        claim = f"Beside {group} neighbours the {_NAMES[statistic]} "
        claim += "is not shown to differ from Baseline's." if shorter is None else "is shorter than Baseline's."
        criterion = f"permutation test p {'>=' if shorter is None else '<'} {LEVEL:g}"
        test = partial(_differs, group, f"p_perm_{statistic}", f"delta_{statistic}", shorter)
        result.append(Finding(claim, criterion, test, cause=CAUSE))
    for group, shorter in {"Constant-Rate": True, "Multimedia": True, "Anomaly": None}.items():
        how = "are not shown to differ from" if shorter is None else "tend to be shorter than"
        claim = f"Latencies beside {group} neighbours {how} Baseline's."
        test = partial(_differs, group, "mann_whitney_p", "cliffs_delta", shorter)
        criterion = f"Mann-Whitney p {'>=' if shorter is None else '<'} {LEVEL:g}"
        result.append(Finding(claim, criterion, test, cause=CAUSE))
    return result


FINDINGS: tuple[Finding, ...] = (
    *_tests(),
    Finding(
        "An anomaly of a neighbour does not show in the sensor's latency.",
        f"|Cliff's delta| < {SMALL:g}",
        partial(_negligible, "Anomaly"),
        cause=CAUSE,
    ),
    Finding(
        "The QFI of the sensor's packets does not explain their latency.",
        f"p of qfi9 >= {LEVEL:g} at the quantiles 0.50 and 0.95",
        partial(_effect, ("0.50", "0.95"), "qfi9", 0),
    ),
    Finding(
        "Where the user plane uses more CPU, latencies are shorter.",
        f"beta of cpu < 0, p < {LEVEL:g} at 0.50 and 0.95",
        partial(_effect, ("0.50", "0.95"), "cpu", -1),
        cause=ONE_QUEUE,
    ),
    Finding(
        "The packet rate does not explain latencies beside the CPU.",
        f"p of packets >= {LEVEL:g} at 0.50 and 0.95",
        partial(_effect, ("0.50", "0.95"), "packets", 0),
        cause=ONE_QUEUE,
    ),
    Finding(
        "Neighbours of a constant rate go with shorter latencies, all else equal.",
        f"beta of constant_rate < 0, p < {LEVEL:g} at 0.50 and 0.95",
        partial(_effect, ("0.50", "0.95"), "constant_rate", -1),
        cause=CAUSE,
    ),
)
