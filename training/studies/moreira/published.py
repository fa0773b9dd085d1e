"""The published figures of Moreira et al. (2026), as rows; see ``data/reference/README.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slicepilot.data.reference import published_table
from slicepilot.training.studies.study import Row

from .samples import BASELINE, INTERACTIONS, QUANTILES, RATIOS, STATISTICS, TERMS, TESTS

UNIT = "us"
RATIO_TOLERANCE, DELTA_TOLERANCE = 0.25, 0.5
CAUSE = (
    "The study times gtp5g's work on a packet that the kernel has already begun with; from N3 to N6 a packet also "
    "waits for a CPU, and that is what busy neighbours make longer."
)


def rows() -> Iterator[Row]:
    """Tables III to VI: traffic classes, tests against Baseline, QFI, quantile regression."""
    classes = {row["ue_traffic"]: row for row in published_table("moreira_traffic_class_latency_ns")}
    for name, printed in classes.items():
        yield from _distribution(f"class/{name}", f"Table III, {name}", printed)
    for printed in published_table("moreira_group_tests"):
        name = printed["comparison"]
        for test in TESTS:
            column = f"{test}_ns" if test.startswith("delta_") else test
            tolerance = DELTA_TOLERANCE if test == "cliffs_delta" else None
            unit = UNIT if test.startswith("delta_") else ""
            yield Row(
                f"test/{name}/{test}",
                f"Table IV, {name}, {test}",
                unit,
                float(printed[column]),
                tolerance,
                CAUSE,
            )
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
                text = table[quantile].get(f"{name}_{kind}", "")
                value = float(text.removeprefix("<")) if text else None
                yield Row(
                    f"regression/{quantile:.2f}/{name}_{kind}",
                    f"Table VI, quantile {quantile:.2f}, {name}, {kind}",
                    UNIT if kind == "beta" else "",
                    value,
                    None,
                )
