"""Pictures of delays: they can be drawn whatever the delays are, and their labels are in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.text import Text

from slicepilot.data.tables.tidy import Stream
from slicepilot.training.delays.analysis import Analysis, analyse
from slicepilot.training.delays.collect import Source, collect
from slicepilot.training.delays.curve_labels import Curve, label_curves
from slicepilot.training.delays.page import write_pictures, write_report
from slicepilot.training.delays.plots import MAX_SERIES, axis_label, pictures, series
from slicepilot.training.reports.pictures import PAGE, PAPER, canvas, to_html

RNG = np.random.default_rng(0)


def analysed(values: np.ndarray, groups: np.ndarray, **more: np.ndarray) -> Analysis:
    table = pa.table({"slice": groups.astype(str), "delay_us": values, **more})
    return analyse(collect([Source("table", Stream(table.schema, iter(table.to_batches())))]), resamples=100)


def some(groups: int = 3, rows: int = 600) -> Analysis:
    names = np.asarray([f"slice{n + 1}" for n in range(groups)])
    own = np.arange(rows) % groups
    return analysed(RNG.lognormal(3 + 0.1 * own, 0.6), names[own], offered_mbps=RNG.uniform(0, 100, rows))


@pytest.mark.parametrize(
    "analysis",
    [
        some(),
        some(12),
        some(1),
        analysed(np.full(60, 5.0), np.arange(60) % 2),
        analysed(RNG.normal(0, 1, 200), np.arange(200) % 2, offered_mbps=np.arange(200) % 2.0),
        analysed(np.asarray([1e-3, 1e6, 2.0, 4.0]), np.asarray([0, 0, 1, 1])),
        analysed(np.arange(100.0), np.arange(100) % 2, offered_mbps=np.where(np.arange(100) < 50, np.nan, 3.0)),
    ],
    ids=["three", "many", "one group", "no spread", "negative", "two values each", "load unknown"],
)
def test_all_that_there_may_be_is_drawn(analysis: Analysis, tmp_path: Path) -> None:
    paths = write_pictures(analysis, tmp_path)
    assert {path.stem for path in paths} >= {"ecdf", "violin"}
    for path in paths:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start
    assert not [path for path in tmp_path.iterdir() if path not in paths]


def test_curves_are_drawn_over_what_varies() -> None:
    analysis = some()
    assert [one.name for one in pictures(analysis.delays, analysis.suite)] == ["ecdf", "violin", "lowess"]
    still = analysed(np.arange(60.0), np.arange(60) % 2, offered_mbps=np.ones(60))
    assert [one.name for one in pictures(still.delays, still.suite)] == ["ecdf", "violin"]


def test_of_many_groups_those_that_differ_most_are_drawn() -> None:
    analysis = some(12, 2400)
    names = [one.name for one in series(analysis.suite, PAPER)]
    assert len(names) == MAX_SERIES
    assert names[0] == "slice1"
    assert "slice12" in names
    assert "slice2" not in names
    assert len({one.colour for one in series(analysis.suite, PAPER)}) == MAX_SERIES


def test_labels_are_inside_and_apart() -> None:
    x = np.linspace(0, 10, 200)
    curves = [Curve(x, np.tanh(x - shift), f"curve {shift}", "black") for shift in np.linspace(3, 5, 6)]
    with canvas(4.3, 0.6, colours=PAPER) as (figure, (axes,)):
        for curve in curves:
            axes.plot(curve.x, curve.y)
        label_curves(figure, axes, curves)
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line to the curve
        frame = axes.get_window_extent()
    assert len(boxes) == len(curves)
    for n, box in enumerate(boxes):
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert not any(box.overlaps(other) for other in boxes[:n])


def test_pages_follow_the_theme_and_files_do_not() -> None:
    analysis = some()
    for one in pictures(analysis.delays, analysis.suite):
        with one.draw(PAGE) as figure:
            html = to_html(figure, one.title)
        assert "var(--ink)" in html
        assert "var(--s1)" in html
        assert "#0" not in html.replace("#000000", "")


def test_report_says_what_was_found(tmp_path: Path) -> None:
    analysis = some()
    write_report(analysis, tmp_path / "report.html", ["a<b"], "slicepilot dataset analyse a<b")
    text = (tmp_path / "report.html").read_text()
    assert text.count("<svg") == 3
    assert "a&lt;b" in text
    assert "a<b" not in text
    for anchor in ("verdict", "groups", "tests", "regression", "notes", "terms", "reproduce"):
        assert f'id="{anchor}"' in text
    for word in ("http://", "https://", "src="):
        assert word not in text.replace("http://www.w3.org", "")


def test_axes_say_what_and_in_which_unit() -> None:
    assert [axis_label(name) for name in ("delay_p99_us", "packets_per_s", "cpu_limit_used_pct", "qfi")] == [
        *("delay p99, µs", "packets, 1/s", "cpu limit used, %", "qfi")
    ]
