import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import no_control, published, static_weights
from slicepilot.agents.heuristics.registry import make
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.comparison import ScenarioResult
from slicepilot.training.evaluation.config import EvaluationConfig
from slicepilot.training.evaluation.judge import evaluate_scenario
from slicepilot.training.evaluation.report import render
from slicepilot.training.evaluation.results import Evaluation, Provenance
from slicepilot.training.evaluation.scores import EDGE_WORK
from slicepilot.training.evaluation.summary import sentences

VOID = {"meta", "br", "hr", "img", "input", "link"}


def judge(name: str, duration_s: float, subjects: tuple[str, ...] = ("reactive-sla",)) -> ScenarioResult:
    scenario = replace(Scenario.from_yaml(name), duration_s=duration_s)
    slices = scenario.slice_set()
    agents = [
        make("reactive-sla", slices),
        make("proportional-share", slices),
        no_control(),
        *(published(n, slices) for n in (1, 2, 7, 8, 20)),
        static_weights(9, slices, 4),
    ]
    window = (duration_s - 20, duration_s)
    return evaluate_scenario(
        scenario, agents, EvaluationConfig((name,), seeds=3, loss_window_s={name: window}), subjects
    )


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    results = (judge("bursty-neighbours", 40), judge("edge-server", 30))
    fits = {"andrade": {"throughput_median_error_pct": 4.25}, "edge-server": {}}
    return Evaluation(results, Provenance.here("slicepilot evaluate --scenario <x>"), fits)


@pytest.fixture(scope="module")
def page(evaluation: Evaluation) -> str:
    return render(evaluation)


class Checker(HTMLParser):
    """Collects ids and links, and insists that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values["href"] or ""] if tag == "a" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_its_links_lead_somewhere(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert checker.links
    assert {link.removeprefix("#") for link in checker.links} <= set(checker.ids)


def test_page_needs_nothing_from_outside(page: str) -> None:
    assert not re.search(r"https?:|//[a-z]", page)
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert "slicepilot evaluate --scenario &lt;x&gt;" in page, "text is escaped"


def test_page_has_every_section(page: str) -> None:
    for section in (
        "verdict", "scenario-bursty-neighbours", "scenario-edge-server", "loses", "fit", "terms", "reproduce",
    ):  # fmt: skip
        assert f'<section id="{section}">' in page
    for picture in (
        "priority slice&#x27;s loss against the others&#x27; loss", "cumulative distribution", "promises broken",
        "cpu held by limits", "knobs over time under reactive-sla", "Return of every agent",
    ):  # fmt: skip
        assert re.search(rf'aria-label="[^"]*{re.escape(picture)}', page), picture


def test_page_shows_what_an_edge_application_got_done(evaluation: Evaluation) -> None:
    first = evaluation.scenarios[0]
    agents = tuple(
        replace(agent, scores=agent.scores | {EDGE_WORK: np.asarray([4000.0, 4100.0, 4200.0]) + 1000 * i})
        for i, agent in enumerate(first.agents)
    )
    result = replace(first, agents=agents, backend="testbed")
    page = render(Evaluation((result,), Provenance.here("x"), {"andrade": {}}))
    for said in ("Edge application&#x27;s work, blocks", "real UPFs on a testbed", "Nothing is simulated here"):
        assert said in page
    ratio = result.verdict("reactive-sla").edge_ratio
    assert ratio is not None
    assert ratio.value < 1  # the first agent has least
    assert f"gets {ratio.value:.2f} times as much done" in " ".join(sentences(result, "reactive-sla"))
    assert "Edge application" not in render(evaluation)
