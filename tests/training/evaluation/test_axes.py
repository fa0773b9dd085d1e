from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.training.evaluation.axes import Figures, best_in_hindsight, shown

FIGURES = st.builds(
    Figures, st.floats(0.01, 1e4), st.floats(-100, 100), st.floats(1e-6, 1e5)
)  # fmt: skip
RIVAL = Figures(broken_s=10.0, best_effort_loss_pct=5.0, cpu=100.0)
OPPOSITE = {"dominates": "dominated", "dominated": "dominates", "equal": "equal", "neither": "neither"}


@pytest.mark.parametrize(
    ("broken_s", "loss_pct", "cpu", "relation"),
    [
        (10.0, 5.0, 100.0, "equal"),
        (9.0, 5.0, 100.0, "dominates"),
        (10.0, 3.0, 100.0, "dominates"),
        (10.0, 5.0, 95.0, "dominates"),
        (10.2, 5.5, 90.0, "dominates"),  # worse in two by what does not count
        (10.2, 5.5, 101.0, "equal"),
        (9.9, 4.6, 99.5, "equal"),
        (9.5, 5.0, 100.0, "neither"),  # clearly less, but not enough
        (10.3, 3.0, 50.0, "neither"),
        (5.0, 5.6, 50.0, "neither"),
        (5.0, 3.0, 102.0, "neither"),
        (10.0, 5.0, 106.0, "dominated"),
        (10.0, 7.0, 100.0, "dominated"),
        (12.0, 5.4, 100.0, "dominated"),
    ],
)
def test_the_thresholds_of_each_axis(broken_s: float, loss_pct: float, cpu: float, relation: str) -> None:
    over = Figures(broken_s, loss_pct, cpu).over(RIVAL)
    assert over.relation == relation
    assert (over.broken, over.best_effort, over.cpu) == pytest.approx((broken_s / 10, 5 - loss_pct, cpu / 100))


@given(FIGURES, FIGURES, st.booleans(), st.floats(0.9, 1.1), st.floats(-3, 3), st.floats(0.9, 1.1))
def test_both_see_the_same_relation(
    first: Figures, other: Figures, near: bool, broken: float, points: float, cpu: float
) -> None:
    """Also near the thresholds."""
    close = Figures(first.broken_s * broken, first.best_effort_loss_pct + points, first.cpu * cpu)
    second = close if near else other
    assert second.over(first).relation == OPPOSITE[first.over(second).relation]


def test_next_to_nothing_is_a_floor_and_an_edge_application_counts_by_its_work() -> None:
    """0.2% of the run, and 10 thousandths of a CPU."""
    assert Figures.floored(100.0, 0.01, 3.0, 0.5) == Figures(0.2, 3.0, 1.0)
    assert Figures.floored(100.0, 7.0, 3.0, 50.0) == Figures(7.0, 3.0, 50.0)
    more, less = (Figures.floored(100.0, 7.0, 3.0, 50.0, work) for work in (4000.0, 2000.0))
    assert more.over(less).cpu == pytest.approx(0.5)
    assert more.over(less).relation == "dominates"


def test_the_best_setting_in_hindsight_keeps_promises_then_serves_best_effort_then_wastes_least() -> None:
    settings = {
        "least broken": Figures(10.0, 8.0, 10.0),
        "wasteful": Figures(10.2, 3.0, 30.0),
        "best": Figures(10.1, 3.0, 20.0),
        "generous": Figures(10.3, -5.0, 5.0),  # breaks promises for 3% longer
    }
    assert best_in_hindsight(settings) == "best"
    assert best_in_hindsight({**settings, "better": replace(RIVAL, broken_s=5.0)}) == "better"
    assert best_in_hindsight({}) is None


@given(st.floats(1e-3, 999), st.floats(-999, 999))
def test_what_is_shown_is_short(ratio: float, points: float) -> None:
    assert len(shown("broken", ratio)) <= 5
    assert len(shown("best_effort", points)) <= 5
    assert float(shown("best_effort", points)) == pytest.approx(points, abs=0.5)
