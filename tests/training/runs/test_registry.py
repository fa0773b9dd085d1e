"""Policies in MLflow's registry: what is logged, the aliases, and what is refused on the way back."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import MODEL_FILE, PROMOTION_FILE, SIGNATURE_FILE, SUMS_FILE, BundleFiles
from slicepilot.agents.learned.signature import verify
from slicepilot.cli.operation.run_mlflow import MlflowRun
from slicepilot.cli.shared.registry import local_bundle
from slicepilot.configs import ConfigError
from slicepilot.controller.promotion import certificate
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.runs.datasets import TRAINING, scenario_dataset
from slicepilot.training.runs.labels import RunLabels
from slicepilot.training.runs.record import RunRecord
from slicepilot.training.runs.registry import CHALLENGER, CHAMPION, DIGEST_TAG, parsed
from tests.command import slicepilot
from tests.controller.record.conftest import count, description, ticks

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow and what it imports


@pytest.fixture(name="registered")
def _registered(
    server: tuple[str, Path], policy: PolicyBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, str, PolicyBundle]:
    """A client, the name of a model, and the policy that is its challenger."""
    from mlflow import MlflowClient

    address, _ = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "lab")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")  # of a busy machine
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    name = f"model-{tmp_path.name}"
    labels = RunLabels.of(None, ["team=edge"], {"bundle": "generalist", "digest": "0" * 64})
    labels = RunLabels(labels.run_name, labels.tags, labels.origin, name)
    dataset = scenario_dataset(Scenario.from_yaml("multi-promise"), TRAINING)
    config = {"algorithm": "ppo", "seed": 7, "ppo": {"epochs": 3}}
    record = RunRecord(tmp_path / "trained", "mine", config, "scenario multi-promise", labels, True, datasets=[dataset])
    record.metrics({"reward": 0.5}, 10)
    record.summary({"estimate/reward": 1.5}, estimate_verdict="better")
    assert record.policy(policy) is not None
    record.finish()
    assert record.tracker is not None
    assert record.tracker.lost == 0
    return MlflowClient(address), name, policy


def kept(server: tuple[str, Path], client: Any, name: str, version: str) -> Path:
    """Where the server has the bundle's files."""
    model_id = client.get_model_version(name, version).source.rpartition("/")[2]
    [folder] = (server[1] / "kept").rglob(f"{model_id}/artifacts/bundle")
    return Path(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trained_policy_is_the_challenger_and_a_promoted_one_the_champion(
    registered: tuple[Any, str, PolicyBundle],
    server: tuple[str, Path],
    tmp_path: Path,
    keys: tuple[Path, Path],
) -> None:
    """From the end of a training to `run --bundle models:/NAME@champion`, by the interface of a real server."""
    client, name, policy = registered
    files = BundleFiles.read(policy.origin or "")
    version = client.get_model_version_by_alias(name, CHALLENGER)
    assert version.tags[DIGEST_TAG] == files.digest
    run = client.get_run(version.run_id)
    assert client.get_experiment(run.info.experiment_id).name == "lab"
    assert client.get_experiment(run.info.experiment_id).tags["mlflow.experimentKind"] == "custom_model_development"
    assert run.info.run_name.startswith("mine-seed7 20")
    assert run.data.tags["team"] == "edge"
    assert run.data.tags["from.bundle"] == "generalist"
    assert run.data.tags["estimate_verdict"] == "better"
    assert run.data.tags["mlflow.user"]
    assert run.data.tags["mlflow.source.name"]
    assert run.data.params["ppo.epochs"] == "3"
    assert run.data.metrics["estimate/reward"] == 1.5
    [dataset] = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.tags[0].value) == ("multi-promise", "training")
    assert len(dataset.dataset.digest) == 32
    assert any(key.startswith("system/") for key in run.data.metrics), "psutil is there"

    # Whoever has no slicepilot runs it by MLflow alone, and it decides alike.
    import mlflow

    model = mlflow.pyfunc.load_model(f"models:/{name}@{CHALLENGER}")
    columns, actions = policy.widths
    assert model.metadata.signature.inputs.input_names() == ["observation"]
    assert model.metadata.load_input_example("models:/" + version.source.rpartition("/")[2]) is not None
    seen = np.random.default_rng(0).random((2, 4, columns), np.float32)
    wanted: Any
    [wanted] = policy.session().run(None, {"observation": seen})
    np.testing.assert_allclose(cast("Any", model.predict({"observation": seen}))["action"], wanted, atol=1e-6)
    assert wanted.shape == (2, 4, actions)

    # The challenger in shadow, promoted where it is: in the registry.
    private, public = keys
    state = tmp_path / "state"
    recorded, facts = ticks(4000), description(digest=files.digest)
    writer = SegmentWriter(state / "records", 1 << 30, segment_s=2.0)
    for part in np.array_split(recorded, 40):
        writer.add(part, facts, 2)
    writer.close()
    count(state, recorded, facts)
    criteria = tmp_path / "lenient.yaml"
    criteria.write_text(LENIENT)
    document = json_of(
        *("promote", f"models:/{name}@{CHALLENGER}", "--records", str(state / "records"), "--json"),
        *("-c", str(criteria), "--sign", str(private)),
        folder=tmp_path,
    )
    assert (document["promoted"], document["champion"]) == (True, f"models:/{name}/{version.version}")
    assert client.get_model_version_by_alias(name, CHAMPION).version == version.version
    folder = local_bundle(f"models:/{name}@{CHAMPION}")
    champion = BundleFiles.read(folder)
    assert champion.digest == files.digest
    assert {PROMOTION_FILE, SIGNATURE_FILE} <= set(champion.parts)
    certificate.check(champion)
    verify(champion, public)

    # What was changed under the alias is refused, whatever was changed with it.
    place = kept(server, client, name, version.version)
    untouched = shutil.copytree(place, tmp_path / "untouched")
    model_file = (place / MODEL_FILE).read_bytes()
    (place / MODEL_FILE).write_bytes(model_file[:-1] + bytes([model_file[-1] ^ 1]))
    refused = said("evaluate", "--bundle", f"models:/{name}@{CHAMPION}", "--no-mlflow", folder=tmp_path)
    assert (
        f"bundle = 'models:/{name}@champion' (version {version.version}): policy.onnx: its SHA-256 differs" in refused
    )
    sums = (place / SUMS_FILE).read_text()
    digest = hashlib.sha256((place / MODEL_FILE).read_bytes()).hexdigest()
    (place / SUMS_FILE).write_text(sums.replace(hashlib.sha256(model_file).hexdigest(), digest))
    refused = said("run", "--bundle", f"models:/{name}@{CHAMPION}", "--name", "none", folder=tmp_path)
    assert "they were changed since it was registered" in refused
    client.set_model_version_tag(name, version.version, DIGEST_TAG, BundleFiles.read(place).digest)
    folder = local_bundle(f"models:/{name}@{CHAMPION}")  # the registry itself lies: the signature tells
    with pytest.raises(ConfigError, match="were not signed with the key"):
        verify(BundleFiles.read(folder), public)
    with pytest.raises(ConfigError, match="promoted with other contents"):
        certificate.check(BundleFiles.read(folder))
    shutil.rmtree(place)
    shutil.copytree(untouched, place)
    with (place / MODEL_FILE).open("ab") as file:
        file.truncate(1 << 30)  # no end of it
    with pytest.raises(ConfigError, match="File too large"):
        local_bundle(f"models:/{name}@{CHAMPION}")


LENIENT = """
shadow: {min_duration_s: 15, min_ticks: 3000}
estimate: {min_windows: 2}
"""


def json_of(*arguments: str, folder: Path) -> Any:
    """The JSON of a command."""
    done = slicepilot(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def said(*arguments: str, folder: Path) -> str:
    """The error of a command that refuses its input, in a line."""
    done = slicepilot(*arguments, cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("models:/slicepilot@champion", ("slicepilot", "champion", "")),
        ("models:/edge node/12", ("edge node", "", "12")),
        ("models:/slicepilot", None),
        ("models:/slicepilot/latest", None),
        ("models:/a/b@champion", None),
        ("models:/@champion", None),
    ],
)
def test_addresses_name_a_version_or_an_alias(address: str, parts: tuple[str, str, str] | None) -> None:
    if parts is None:
        with pytest.raises(ConfigError, match=r"expected models:/NAME@ALIAS or models:/NAME/VERSION"):
            parsed(address)
    else:
        assert parsed(address) == parts


@pytest.mark.parametrize("tag", ["team", "=edge", "a\nb=c", "mlflow.user=root", "key=\x1b[31m"])
def test_tags_that_cannot_be_tags_are_refused(tag: str) -> None:
    with pytest.raises(ConfigError, match=r"^tag = "):
        RunLabels.of(None, [tag])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_controllers_run_is_logged_by_a_process_of_its_own(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server[0])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "live")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    monkeypatch.setattr("sys.argv", ["/usr/bin/slicepilot", "run", "--mlflow"])
    settings = RunConfig(bundle="generalist", mode="live", scenario="testbed-contention")
    logged = MlflowRun(settings, Path("models:/slicepilot@champion"), RunLabels.of("evening", ["site=north"]))
    client = MlflowClient(server[0])
    run = client.get_run(logged.run_id)
    assert (run.info.status, run.info.run_name) == ("RUNNING", "evening")
    logged.finish(DOCUMENT)
    run = client.get_run(logged.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["mode"] == "live"
    assert run.data.tags["command"] == "slicepilot run --mlflow", "not the command of the process that logs"
    assert run.data.tags["site"] == "north"
    assert run.data.tags["bundle"] == "models:/slicepilot@champion"
    assert run.data.tags["digest"] == BundleFiles.read("generalist").digest
    assert run.data.params["watchdog.hang_s"] == "1.0"
    assert run.data.metrics["slice1/carried_mbps"] == 39.0
    assert run.data.metrics["in_charge/policy"] == 0.9
    assert run.data.metrics["loop/total_us/p99"] == 120.0
    assert "slice1/delay_p99_us" not in run.data.metrics, "it was not measured"
    assert [entry.path for entry in client.list_artifacts(logged.run_id)] == ["run.json"]

    killed = MlflowRun(settings, None, RunLabels())
    assert killed._process.stdin is not None
    killed._process.stdin.close()  # as when the controller is killed
    killed._process.wait(120)
    assert client.get_run(killed.run_id).info.status == "KILLED"


ROW = dict.fromkeys(("lost_pct", "late_ticks_pct", "broken_s", "broken_by_rate_s", "measured_pct"), 0.0)
DOCUMENT: dict[str, Any] = {
    "slices": [{"slice": "slice1", "offered_mbps": 40.0, "carried_mbps": 39.0, "delay_p99_us": float("nan")} | ROW],
    "in_charge": {"policy": 0.9, "guard": 0.1, "safe": 0.0},
    "loop": {
        "ticks": 100,
        "late_ticks": 1,
        "missed_ticks": 0,
        "failed_applies": 0,
        "interventions": {"slew": 3},
        "total_us": {"p50": 60.0, "p99": 120.0, "p999": 200.0},
    },
}


def test_a_registry_that_is_away_is_said_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By whatever takes a bundle, before anything else is begun."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^MLFLOW_TRACKING_URI = 'http://127.0.0.1:1': .*Connection refused"):
        local_bundle("models:/slicepilot@champion")
