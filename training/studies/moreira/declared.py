"""Moreira et al. (2026): a sensor's packets beside noisy neighbours of four kinds, at a high and a low QFI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slicepilot.data.reference import published_table
from slicepilot.training.studies.study import Row, Study

from .findings import CAUSE, FINDINGS
from .pictures import pictures
from .played import measure, simulate
from .release import read_release
from .samples import BASELINE, INTERACTIONS, QUANTILES, RATIOS, STATISTICS, TERMS, TESTS

UNIT = "us"
RATIO_TOLERANCE, DELTA_TOLERANCE = 0.25, 0.5


def _rows() -> Iterator[Row]:
    """Tables III to VI: classes, tests against Baseline, QFI, quantile regression; see ``data/reference/README.md``."""
    classes = {row["ue_traffic"]: row for row in published_table("moreira_traffic_class_latency_ns")}
    for name, printed in classes.items():
        yield from _distribution(f"class/{name}", f"Table III, {name}", printed)
    for printed in published_table("moreira_group_tests"):
        name = printed["comparison"]
        for test in TESTS:
            column = f"{test}_ns" if test.startswith("delta_") else test
            tolerance = DELTA_TOLERANCE if test == "cliffs_delta" else None
            unit, text = UNIT if test.startswith("delta_") else "", f"Table IV, {name}, {test}"
            yield Row(f"test/{name}/{test}", text, unit, float(printed[column]), tolerance, CAUSE)
        for statistic in RATIOS:
            value = float(classes[name][statistic]) / float(classes[BASELINE][statistic])
            text = f"{name}, {statistic} over {BASELINE}'s (from Table III)"
            yield Row(f"ratio/{name}/{statistic}", text, "", value, RATIO_TOLERANCE, CAUSE)
    for printed in published_table("moreira_qfi_latency_ns"):
        yield from _distribution(f"qfi/{printed['qfi']}", f"Table V, QFI {printed['qfi']}", printed)
    yield from _regression()


def _distribution(key: str, text: str, printed: Mapping[str, str]) -> Iterator[Row]:
    for statistic in STATISTICS:
        yield Row(f"{key}/{statistic}", f"{text}, {statistic}", UNIT, float(printed[statistic]), None, CAUSE)


def _regression() -> Iterator[Row]:
    table = {float(row["quantile"]): row for row in published_table("moreira_quantile_regression_ns")}
    for quantile in QUANTILES:
        for name in (*TERMS, *(f"{term}_x_qfi9" for term in INTERACTIONS)):
            for kind in ("beta", "p"):
                printed = table[quantile].get(f"{name}_{kind}", "")
                value = float(printed.removeprefix("<")) if printed else None
                text = f"Table VI, quantile {quantile:.2f}, {name}, {kind}"
                unit = UNIT if kind == "beta" else ""
                yield Row(f"regression/{quantile:.2f}/{name}_{kind}", text, unit, value, None)


STUDY = Study(
    name="moreira",
    title="Noisy neighbours of a sensor",
    citation='R. Moreira, L. F. Rodrigues Moreira, T. C. Carvalho, F. de Oliveira Silva, "Noisy Neighbor Influence in '
    'the Data Plane of Beyond 5G Networks", arXiv:2601.12106, 2026',
    question="Whether traffic of other slices changes the time that a user plane takes for a sensor's packets, and "
    "whether a QFI of higher priority protects them.",
    rows=list(_rows()),
    findings=FINDINGS,  # no orders: four classes are too few for a rank correlation to say anything
    simulate=simulate,
    measure=measure,
    release=read_release,
    pictures=pictures,
)
