"""A bundle is refused unless it is whole and fits; what it decides is what its model says."""

import dataclasses
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from slicepilot.agents.base import Agent
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import Agreement, PolicyBundle, TrainingRecord
from slicepilot.configs import ConfigError
from slicepilot.env.encoding import FEATURES, NUM_FEATURES
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry
from tests.loads import context_of

SLICES = SliceSet.from_yaml("five-video")


def holding_model(features: int = NUM_FEATURES, outputs: int = 3, output_name: str = "action") -> bytes:
    """Gives back the knobs that the observation holds."""
    first = FEATURES.index("cpu_limit")
    values = {"starts": [first], "ends": [first + outputs], "axes": [2]}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["observation", *values], [output_name])],
        "holding",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["lanes", "slices", features])],
        [helper.make_tensor_value_info(output_name, TensorProto.FLOAT, ["lanes", "slices", outputs])],
        [helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def bundle(model: bytes | None = None) -> PolicyBundle:
    record = TrainingRecord("ppo", seed=7, env_steps=1000, train_s=1.5, run_id="abc", config={"ppo": {"epochs": 3}})
    agreement = Agreement(1e-7, 3000, (2, 5, 64))
    return PolicyBundle(SLICES, model or holding_model(), record, agreement=agreement)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundle().save(tmp_path / "bundle")
    return tmp_path / "bundle"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change bundle.yaml and make the sums fit, as someone would who edits a bundle by hand."""
    raw = yaml.safe_load((folder / "bundle.yaml").read_text())
    change(raw)
    (folder / "bundle.yaml").write_text(yaml.safe_dump(raw))
    reseal(folder)


def reseal(folder: Path) -> None:
    names = ("policy.onnx", "bundle.yaml")
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(sums))


def test_load_gives_back_what_was_saved(folder: Path) -> None:
    loaded = PolicyBundle.load(folder)
    assert dataclasses.replace(loaded, origin=None) == bundle()
    assert {p.name for p in folder.iterdir()} == {"policy.onnx", "bundle.yaml", "SHA256SUMS"}
    assert [p.name for p in folder.parent.iterdir()] == ["bundle"]


def test_saving_again_replaces_the_folder(folder: Path) -> None:
    (folder / "stray").write_text("")
    dataclasses.replace(bundle(), nice_scope="process").save(folder)
    assert PolicyBundle.load(folder).nice_scope == "process"
    assert not (folder / "stray").exists()
    assert [p.name for p in folder.parent.iterdir()] == ["bundle"]


def test_a_failed_save_leaves_the_old_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            dataclasses.replace(bundle(), nice_scope="process").save(folder)
    assert PolicyBundle.load(folder).nice_scope == "group"
    assert [p.name for p in folder.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("name", ["policy.onnx", "bundle.yaml", "SHA256SUMS"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"{name}: No such file"):
        PolicyBundle.load(folder)


@pytest.mark.parametrize("name", ["policy.onnx", "bundle.yaml"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "append"])
def test_a_changed_file_is_refused_by_its_sum(folder: Path, name: str, damage: str) -> None:
    data = bytearray((folder / name).read_bytes())
    if damage == "truncate":
        del data[len(data) // 2 :]
    elif damage == "flip":
        data[len(data) // 2] ^= 1
    else:
        data += b"\n"
    (folder / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"{name}: its SHA-256 differs"):
        PolicyBundle.load(folder)


def test_a_model_without_a_sum_is_refused(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text("")
    with pytest.raises(ConfigError, match=r"SHA256SUMS: has no line for bundle\.yaml"):
        PolicyBundle.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(format_version=2), "format_version = 2: expected 1"),
        (lambda raw: raw.pop("format_version"), "format_version = None: expected 1"),
        (lambda raw: raw["encoder"]["features"].reverse(), r"encoder\.features\.0 = 'uplink_capacity': expected 'off"),
        (
            lambda raw: raw["encoder"]["features"].remove("loss_ratio"),
            r"encoder\.features: without loss_ratio: the bundle was made by another version of slicepilot; train it",
        ),
        (
            lambda raw: raw["encoder"]["features"].insert(8, "a\nb"),
            r"encoder\.features: unknown 'a\\nb': the bundle was made by another version of slicepilot; train it",
        ),
        (lambda raw: raw["encoder"]["scale"]["loss_ratio"].__setitem__(0, 0.5), r"scale\.loss_ratio\.0 = 0.5: exp"),
        (lambda raw: raw.pop("encoder"), "encoder = None"),
        (lambda raw: raw["decoder"].update(none_above=0.5), r"decoder\.none_above = 0\.5: expected 0\.9"),
        (lambda raw: raw.update(nice_scope="thread"), "nice_scope = 'thread'"),
        (lambda raw: raw["slices"]["slices"][1].update(weight=-1), r"slices\.slices\.slice2\.weight = -1"),
        (lambda raw: raw.pop("training"), "training"),
        (lambda raw: raw["training"].update(seed="x"), r"training\.seed = 'x'"),
        (lambda raw: raw["training"].update(algorithm="p" * 65), r"training\.algorithm = 'ppp"),
        (lambda raw: raw["training"].update(algorithm="ppo\x1b[2J"), "control characters"),
        (lambda raw: raw["training"].update(algorithm="ppo\n"), r"training\.algorithm = "),
        (lambda raw: raw["training"].update(algorithm=""), r"training\.algorithm = ''"),
        (lambda raw: raw.update(colour="red"), "colour = 'red': unknown field"),
    ],
)
def test_a_description_that_does_not_fit_is_refused_by_field(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(ConfigError, match=message) as caught:
        PolicyBundle.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"not a model", "policy.onnx: not a model"),
        (holding_model(features=NUM_FEATURES + 1), rf"input = .*expected observation .*{NUM_FEATURES}\)"),
        (holding_model(outputs=2), r"output = .*expected action .*3\)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, model: bytes, message: str) -> None:
    bundle(model).save(tmp_path / "bundle")
    with pytest.raises(ConfigError, match=message):
        PolicyBundle.load(tmp_path / "bundle")


def changed(index: int, **values: Any) -> SliceSet:
    specs = list(SLICES.slices)
    specs[index] = dataclasses.replace(specs[index], **values)
    return SliceSet(tuple(specs))


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (SliceSet(SLICES.slices[::-1]), r"slices\.0\.name = 'slice5': expected 'slice1'"),
        (SliceSet(SLICES.slices[:2]), "slices: 2 given; expected the 5"),
        (changed(1, name="other"), r"slices\.1\.name = 'other'"),
        (changed(1, s_nssai=dataclasses.replace(SLICES.slices[1].s_nssai, sst=2)), r"slices\.1\.s_nssai\.sst = 2"),
        (
            changed(2, bounds=dataclasses.replace(SLICES.slices[2].bounds, nice=(-5, 5))),
            r"slices\.2\.bounds\.nice = \(-5, 5\): expected \(-10, 10\)",
        ),
    ],
)
def test_other_slices_are_refused_by_field_unless_transferred(slices: SliceSet, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bundle().for_slices(slices)
    assert bundle().for_slices(slices, transfer=True).slices == slices


def test_transfer_needs_2_to_64_slices() -> None:
    with pytest.raises(ConfigError, match="slices: 1 given; expected 2 to 64"):
        bundle().for_slices(SliceSet(SLICES.slices[:1]), transfer=True)
    assert bundle().for_slices(SLICES) == bundle()


def test_the_agent_decides_what_the_model_says() -> None:
    agent: Agent = LearnedAgent(bundle(), name="held")
    lanes = 3
    agent.reset(SLICES, context_of(SLICES, lanes), seed=0)
    shape = (5, lanes)
    rng = np.random.default_rng(0)
    knobs = Knobs.of(
        rng.uniform(100, 1000, shape).astype(np.float32),
        rng.integers(-10, 11, shape).astype(np.float32),
        np.where(rng.random(shape) > 0.5, np.inf, rng.uniform(10, 500, shape)).astype(np.float32),
    )
    for _ in range(3):
        decided = agent.decide(Telemetry.empty(5, lanes), knobs)
        np.testing.assert_allclose(decided.cpu_limit_mcpu, knobs.cpu_limit_mcpu, rtol=1e-4)
        np.testing.assert_array_equal(decided.nice, knobs.nice)
        np.testing.assert_allclose(decided.egress_mbps, knobs.egress_mbps, rtol=1e-4)
        knobs = decided
    assert agent.name == "held"


def test_the_agent_refuses_other_slices_and_survives_pickling() -> None:
    two = SliceSet(SLICES.slices[:2])
    agent = LearnedAgent(bundle())
    with pytest.raises(RuntimeError, match="reset"):
        agent.decide(Telemetry.empty(5), Knobs.none(5))
    with pytest.raises(ConfigError, match="slices: 2 given"):
        agent.reset(two, context_of(two, 1), 0)
    agent.reset(SLICES, context_of(SLICES, 1), 0)
    copy = pickle.loads(pickle.dumps(LearnedAgent(bundle(), transfer=True)))
    copy.reset(two, context_of(two, 1), 0)
    assert copy.decide(Telemetry.empty(2), Knobs.none(2)).nice.shape == (2, 1)
