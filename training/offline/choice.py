"""A choice among the settings of a log, by the number of active slices.

A log whose knobs never move within a run says what its settings earn and nothing about other settings. So no network is
trained: the policy takes a logged setting where the log shows that it earns more than no control, and no control
everywhere else (R. Laroche, P. Trichelair, R. Tachet des Combes, "Safe Policy Improvement with Baseline Bootstrapping",
ICML 2019, arXiv:1712.06924). Of several such settings it takes that of the largest lower bound, not of the largest mean
(Y. Jin, Z. Yang, Z. Wang, "Is Pessimism Provably Efficient for Offline RL?", ICML 2021, arXiv:2012.15085).

The bound is that of the difference in the runs' mean reward from no control: one-sided, for unequal variances (B.
Welch, Biometrika 34, 1947), at 95% for all comparisons of a log together (Bonferroni: O. J. Dunn, JASA 56, 1961).
Unmeasured promises count as broken in a setting's reward and are left out of the reward of no control.

In logs whose settings are all alike, and in which a run in seven goes wrong, at most 5% of 3,000 drawn logs got a
choice, with 3 to 27 settings of 30 to 40 runs each. With settings of 8 to 25 runs beside 40 of no control it was 18%:
some of these settings had no run that went wrong. Therefore only settings of `LEAST_RUNS` runs are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from slicepilot.agents.heuristics.fixed import NICE_STEP
from slicepilot.agents.learned.bundle import Agreement
from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME, OnnxNetwork, open_session
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.missing import at_worst
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import FEATURES, NUM_FEATURES, KnobDecoder
from slicepilot.env.knobs import NICE, NUM_KNOBS, Knobs
from slicepilot.env.simulator.cpu import BEST_EFFORT_SHARES, SHARES_PER_MCPU
from slicepilot.env.slices import SliceSet
from slicepilot.training.networks.export import ExportError

from .data import slices_of

LEAST_RUNS = 30
"""Runs of a setting in a context: a setting that fails in a tenth of its runs fails in at least one of these with
probability 96%."""
LEVEL = 0.95
STEADY = 1e-4
"""Actions that differ by no more than this are the same setting."""
ACTIVE = FEATURES.index("active")
OPSET, IR_VERSION = 18, 8

Runs = npt.NDArray[np.float64]
"""Mean reward per control period of each run (N,)."""


@dataclass(frozen=True)
class Setting:
    """A setting as logged.

    Attributes:
        names: of the behaviours that had it.
        action: float32 (S, 3) in [-1, 1]: the setting as a policy sets it, on pods of the declared CPU requests.
        rewards: by number of active slices, what its runs earned; what was not measured is left out.
        at_worst: the same, with what was not measured as broken.
    """

    names: tuple[str, ...]
    action: FloatArray
    rewards: Mapping[int, Runs]
    at_worst: Mapping[int, Runs]


@dataclass(frozen=True)
class Option:
    """A setting with a number of active slices.

    Attributes:
        active_slices: how many.
        setting: what is set.
        chosen: whether it is what the policy does.
        runs: of the setting with so many active slices.
        reward: their mean, per control period; for all but no control what was not measured counts as broken.
        above_low: lower bound of the difference from no control; None for no control itself, or with fewer than
            `LEAST_RUNS` runs of either.
    """

    active_slices: int
    setting: Setting
    chosen: bool
    runs: int
    reward: float
    above_low: float | None


@dataclass(frozen=True)
class Choice:
    """Statistics of a log's settings.

    Attributes:
        slices: S of them.
        control: no control, as logged.
        options: all settings in all contexts.
        left_out: behaviours whose knobs moved within a run.
    """

    slices: SliceSet
    control: Setting
    options: tuple[Option, ...]
    left_out: tuple[str, ...]

    @property
    def controls(self) -> bool:
        """Whether any setting is clearly better than no control."""
        return any(option.chosen and option.setting is not self.control for option in self.options)

    def actions(self) -> FloatArray:
        """The policy: an action for each number of active slices, float32 (S + 1, S, 3)."""
        table = np.repeat(_no_control(self.slices)[None], len(self.slices) + 1, axis=0)
        for option in self.options:
            if option.chosen:
                table[option.active_slices] = option.setting.action
        return table


def choose(episodes: EpisodeSet) -> Choice:
    """Compare the settings of a log with no control.

    Args:
        episodes: whole runs, as recorded or imported.

    Raises:
        ConfigError: another encoding than this version's, or no run without control.
    """
    slices = slices_of(episodes)
    steady = [episode for episode in episodes if len(episode) and np.ptp(episode.actions, axis=0).max() <= STEADY]
    settings = _settings(steady, episodes, slices)
    nothing = _no_control(slices)
    controls = [setting for setting in settings if np.abs(setting.action - nothing).max() <= STEADY]
    if not controls:
        raise ConfigError(
            "dataset: no run without control; expected some, because that is what settings are compared with "
            "(slicepilot dataset record --agents no-control)"
        )
    control = controls[0]
    enough = [
        (number, active)
        for number, setting in enumerate(settings)
        for active, runs in setting.at_worst.items()
        if setting is not control and len(runs) >= LEAST_RUNS <= len(control.rewards.get(active, ()))
    ]
    bounds = {
        (number, active): _above_low(settings[number].at_worst[active], control.rewards[active], len(enough))
        for number, active in enough
    }
    options: list[Option] = []
    for active in sorted({active for setting in settings for active in setting.rewards}):
        own = {number: bounds.get((number, active)) for number in range(len(settings))}
        better = {number: bound for number, bound in own.items() if bound is not None and bound > 0.0}
        best = settings[max(better, key=better.__getitem__)] if better else control
        for number, setting in enumerate(settings):
            runs = (setting.rewards if setting is control else setting.at_worst).get(active)
            if runs is not None:
                options.append(Option(active, setting, setting is best, len(runs), float(runs.mean()), own[number]))
    moved = [name for name in episodes.behaviours if name not in {episode.behaviour for episode in steady}]
    return Choice(slices, control, tuple(options), tuple(moved))


def to_onnx(choice: Choice) -> bytes:
    """The policy as a model: ``observation`` (lanes, S, D) to ``action`` (lanes, S, 3)."""
    lanes_and_slices = ["lanes", "slices"]
    constants: dict[str, npt.NDArray[Any]] = {
        "active_column": np.asarray(ACTIVE, np.int64),
        "half": np.asarray(0.5, np.float32),
        "slice_axis": np.asarray([1], np.int64),
        "first": np.asarray([0], np.int64),
        "settings": choice.actions(),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gather", [INPUT_NAME, "active_column"], ["active"], axis=2),
            helper.make_node("Greater", ["active", "half"], ["is_active"]),
            helper.make_node("Cast", ["is_active"], ["counted"], to=TensorProto.INT64),
            helper.make_node("ReduceSum", ["counted", "slice_axis"], ["number"], keepdims=0),
            helper.make_node("Gather", ["settings", "number"], ["chosen"], axis=0),
            helper.make_node("Shape", [INPUT_NAME], ["num_slices"], start=1, end=2),  # an output of open shape
            helper.make_node("Slice", ["chosen", "first", "num_slices", "slice_axis"], [OUTPUT_NAME]),
        ],
        "choice",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, [*lanes_and_slices, NUM_FEATURES])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, [*lanes_and_slices, NUM_KNOBS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def check_agreement(choice: Choice, model: bytes, observations: FloatArray) -> Agreement:
    """How far the model's actions for observations (N, S, D) differ from the chosen actions.

    Raises:
        ExportError: they are not the same.
    """
    network = OnnxNetwork(open_session(model, NUM_FEATURES, NUM_KNOBS))
    chosen = choice.actions()[(observations[..., ACTIVE] > 0.5).sum(axis=1)]
    actions = np.empty_like(chosen)
    network.bind(np.ascontiguousarray(observations), actions)
    network.run()
    error = float(np.abs(actions - chosen).max())
    if error > 0.0:
        raise ExportError(f"policy.onnx: actions differ by {error:.2e} from the chosen settings; expected the same")
    return Agreement(error, len(observations), (len(choice.slices),))


def _above_low(setting: Runs, control: Runs, comparisons: int) -> float:
    """Welch's lower bound of the difference of means; minus infinity where nothing varies."""
    if not (setting.std() > 0.0 or control.std() > 0.0):
        return -np.inf
    from scipy import stats  # takes two seconds, which every other training would wait for

    test: Any = stats.ttest_ind(setting, control, equal_var=False, alternative="greater")
    return float(test.confidence_interval(1.0 - (1.0 - LEVEL) / comparisons).low)


def _settings(steady: Sequence[Episode], episodes: EpisodeSet, slices: SliceSet) -> list[Setting]:
    """Settings in order of first appearance; runs with the same knobs and weights share a setting."""
    actions: list[FloatArray] = []
    groups: list[list[Episode]] = []
    for episode in steady:
        action = _on_declared_pods(episode, slices)
        same = next((n for n, known in enumerate(actions) if np.abs(known - action).max() <= STEADY), None)
        if same is None:
            actions.append(action)
            groups.append([episode])
        else:
            groups[same].append(episode)
    result = []
    for action, own in zip(actions, groups, strict=True):
        names = tuple(dict.fromkeys(episode.behaviour for episode in own))
        as_measured: dict[int, list[float]] = {}
        worst: dict[int, list[float]] = {}
        for episode in own:
            active, usable = _active(episode), np.isfinite(episode.rewards)
            usable &= ~np.asarray(episode.decisions.get("missed_ticks", np.zeros(len(episode))), np.bool_)
            known = at_worst(episode, episodes.facts)
            for number in np.unique(active[usable]).tolist():
                steps = usable & (active == number)
                as_measured.setdefault(number, []).append(float(episode.rewards[steps].mean(dtype=np.float64)))
                worst.setdefault(number, []).append(float(known[steps].mean()))
        both = ({number: np.asarray(runs) for number, runs in table.items()} for table in (as_measured, worst))
        result.append(Setting(names, action, *both))
    return result


def _active(episode: Episode) -> npt.NDArray[np.int64]:
    """Slices with traffic at each decision (T,), those that were not measured among them."""
    active = episode.observations[:-1, :, ACTIVE] > 0.5
    if episode.unmeasured is not None:
        active = active | episode.unmeasured[:-1]
    return np.asarray(active.sum(axis=1), np.int64)


def _on_declared_pods(episode: Episode, slices: SliceSet) -> FloatArray:
    """A run's setting (S, 3) for pods with the declared CPU requests.

    Requests are the weights of pods, so a run with other requests had other weights. Nice of group scope sets the same
    ratios, in levels of 1.25, as far as the bounds of nice allow; 512 to 1 needs 28 levels.
    """
    action: FloatArray = episode.actions[0]
    declared = slices.column("cpu_request_mcpu")[:, 0]
    requests = np.asarray(episode.info.get("request_mcpu", declared), np.float32)
    if np.array_equal(requests, declared):
        return action
    had, has = (np.maximum(own * SHARES_PER_MCPU, BEST_EFFORT_SHARES) for own in (requests, declared))
    levels = np.log(had / has) / np.log(NICE_STEP)
    decoder = KnobDecoder(slices)
    values = decoder.decode(action)[0].values.copy()
    values[NICE, :, 0] += np.rint((levels.max() + levels.min()) / 2.0) - np.rint(levels)
    low, high = (slices.bound("nice", side) for side in (0, 1))
    values[NICE] = np.clip(values[NICE], low, high)
    return np.asarray(decoder.encode(Knobs(values))[..., 0].T, np.float32)


def _no_control(slices: SliceSet) -> FloatArray:
    """(S, 3)."""
    return np.asarray(KnobDecoder(slices).encode(Knobs.none(len(slices)))[..., 0].T, np.float32)
