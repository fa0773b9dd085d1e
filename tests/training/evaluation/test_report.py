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
from slicepilot.training.evaluation.summary import headline, sentences, short_list

VOID = {"meta", "br", "hr", "img", "input", "link"}


def judge(name: str, duration_s: float) -> ScenarioResult:
    scenario = replace(Scenario.from_yaml(name), duration_s=duration_s)
    slices = scenario.slice_set()
    agents = [
        make("reactive-sla", slices),
        make("queue-greedy", slices),
        no_control(),
        *(published(n, slices) for n in (1, 2, 7, 8, 20)),
        static_weights(9, slices, 4),
    ]
    window = (duration_s - 20, duration_s)
    config = EvaluationConfig((name,), seeds=3, loss_window_s={name: window})
    return evaluate_scenario(scenario, agents, config, ["reactive-sla"])


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


def test_page_is_not_cut_at_any_width(page: str) -> None:
    labels = [float(x) for x in re.findall(r"translate\((-?[\d.]+) [-\d.]+\) rotate\(-90\)", page)]
    assert labels
    assert min(labels) > 8.5, "labels of axes begin left of their picture"
    cells = re.findall(r"<td[^>]*>", page)
    assert cells
    assert all(re.search(r'data-label="[^"]+"', cell) for cell in cells), "cells without a heading on a phone"


def test_page_has_every_section(page: str) -> None:
    for section in (
        "verdict", "scenario-bursty-neighbours", "scenario-edge-server", "fit", "terms", "reproduce",
    ):  # fmt: skip
        assert f'<section id="{section}">' in page
    for picture in (
        "reactive-sla: broken promises in every scenario", "best effort in every scenario", "wasted cpu of every agent",
        "cumulative distribution", "knobs over time under reactive-sla",
    ):  # fmt: skip
        assert re.search(rf'aria-label="[^"]*{re.escape(picture)}', page), picture


def test_page_says_where_it_comes_from(page: str, evaluation: Evaluation) -> None:
    assert "slicepilot evaluate --scenario &lt;x&gt;" in page
    assert "throughput median error pct" in page
    assert "4.25" in page
    assert "not fitted to measurements" in page
    assert f"python {evaluation.provenance.versions['python']}" in page


def test_the_picture_has_a_dot_for_every_scenario_and_rival(page: str, evaluation: Evaluation) -> None:
    """Two scenarios, against the rule and against the best fixed settings, on three axes; better is left."""
    for axis in ("broken promises", "best effort", "wasted cpu"):
        picture = page[page.index(f"reactive-sla: {axis} in every scenario") :]
        picture = picture[: picture.index("</figure>")]
        assert "better" in picture
        assert "against queue-greedy" in picture
        # Dots are uses of a marker that is filled or not; the legend has two more.
        assert len(re.findall(r'<use [^>]*style="fill', picture)) == 2 * len(evaluation.scenarios) + 2


def test_sentences_say_relation_and_figures(evaluation: Evaluation) -> None:
    result = evaluation.scenarios[0]
    rule, fixed = sentences(result, "reactive-sla")
    over = result.over("reactive-sla", "rule")
    assert over is not None
    assert f"{over.broken:.2f} of its broken seconds, " in rule
    assert (
        f"best-effort loss {abs(over.best_effort):.1f} points {'lower' if over.best_effort > 0 else 'higher'}" in rule
    )
    assert f"{over.cpu:.2f} of its wasted CPU" in rule
    assert f"{result.best_fixed}, the best fixed setting in hindsight" in fixed
    [other] = sentences(result, "queue-greedy")
    assert "best fixed" in other, "the rule is not judged against itself"
    reported = " ".join(headline(evaluation.scenarios, "reactive-sla"))
    assert "of 2 scenarios" in reported
    assert " ".join(headline([result], "reactive-sla")) == f"{rule} {fixed}"


@pytest.mark.parametrize(
    ("factor", "points", "cpu", "said"),
    [
        (
            74.02, 70.3, 0.01,
            ("queue-greedy (worse on promises, best effort; better on CPU): 74 times its broken seconds, "
            "best-effort loss 70.3 points higher, 0.01 of its wasted CPU."),
        ),
        (
            2.46, -3.0, 1.0,
            ("(worse on promises; better on best effort): 2.5 times its broken seconds, best-effort loss 3.0 points "
            "lower, 1.00 of its wasted CPU."),
        ),
        (
            0.95, 0.0, 1.0,
            "(better on promises; by too little to dominate): 0.95 of its broken seconds, the same best-effort loss, ",
        ),
        (1.05, 0.0, 1.0, "(worse on promises; by too little to be dominated): 1.05 of its broken seconds, "),
    ],
)  # fmt: skip
def test_neither_says_which_axes_are_worse_and_better(
    evaluation: Evaluation, factor: float, points: float, cpu: float, said: str
) -> None:
    first = evaluation.scenarios[0]
    rule = first.agent("queue-greedy")
    base = {"sla_violation_s": 0.5, "best_effort_loss_pct": 1.0, "cpu_wasted_core_s": 100.0}
    mine = {"sla_violation_s": 0.5 * factor, "best_effort_loss_pct": 1.0 + points, "cpu_wasted_core_s": 100.0 * cpu}
    agents = [
        replace(rule, name=name, scores=rule.scores | {key: np.full(3, value) for key, value in scores.items()})
        for name, scores in (("reactive-sla", mine), ("queue-greedy", base))
    ]
    result = replace(first, agents=tuple(agents))
    assert said in sentences(result, "reactive-sla")[0]
    [over_all, *_] = headline([result, result], "reactive-sla")
    assert ("(worse there on promises in 2" in over_all) == (factor > 1)


def test_the_page_warns_of_few_seeds_once(page: str, evaluation: Evaluation) -> None:
    assert page.count("3 seeds: too few to tell agents apart") == 1
    many = tuple(replace(result, seeds=5) for result in evaluation.scenarios)
    assert "too few" not in render(replace(evaluation, scenarios=many))


def test_short_list_holds_the_judged_first_and_nobody_twice(evaluation: Evaluation) -> None:
    for result in evaluation.scenarios:
        names = [a.name for a in short_list(result)]
        assert names[0] == "reactive-sla"
        assert len(set(names)) == len(names)
        assert set(result.featured) <= set(names)


def test_page_without_a_judged_agent_says_so(evaluation: Evaluation) -> None:
    page = render(replace(evaluation, scenarios=(replace(evaluation.scenarios[0], subjects=()),)))
    assert "No agent is judged" in page


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
    over = result.over("reactive-sla", "rule")
    assert over is not None
    assert over.cpu == pytest.approx(5100 / 4100), "the first agent has least"
    assert "0.80 of its edge application's work" in sentences(result, "reactive-sla")[0]
    assert "Edge application" not in render(evaluation)
