"""Data of a run's training or evaluation, with its digest, as MLflow lists datasets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.env.simulator.scenario import Scenario

DIGEST_LENGTH = 32  # hexadecimal digits of a SHA-256: MLflow keeps at most 36 characters
TRAINING, EVALUATION = "training", "evaluation"


@dataclass(frozen=True)
class RunDataset:
    """A dataset of a run.

    Attributes:
        name: as it is called on the command line.
        digest: first half of the SHA-256 of its contents, in hexadecimal.
        path: of its file or folder; None for what was drawn or declared.
        context: ``training`` or ``evaluation``.
        profile: plain facts, such as its number of steps.
        schema: MLflow's description of its columns.
    """

    name: str
    digest: str
    path: str | None
    context: str
    profile: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None

    def to_mlflow(self) -> Any:
        """The argument for `MlflowClient.log_inputs`."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = {"uri": self.path} if self.path else {"name": self.name}
        dataset = Dataset(
            name=self.name[:500],
            digest=self.digest,
            source_type="local" if self.path else "code",
            source=json.dumps(source),
            schema=None if self.schema is None else json.dumps(self.schema),
            profile=json.dumps(self.profile),
        )
        return DatasetInput(dataset, [InputTag("mlflow.data.context", self.context)])


def episodes_dataset(name: str, path: Path, episodes: EpisodeSet) -> RunDataset:
    """Recorded episodes, with the digest of their files.

    Raises:
        OSError: a file that cannot be read.
    """
    first = episodes.episodes[0]
    columns = {"observations": first.observations.shape[1:], "actions": first.actions.shape[1:], "rewards": ()}
    tensors = [
        {"name": name, "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, *shape]}}
        for name, shape in columns.items()
    ]
    schema = {"mlflow_tensorspec": {"features": json.dumps(tensors), "targets": None}}
    profile = {
        "num_steps": episodes.num_steps,
        "num_episodes": len(episodes.episodes),
        "behaviours": list(episodes.behaviours),
    }
    return RunDataset(name, digest_of(path), str(path.resolve()), TRAINING, profile, schema)


def scenario_dataset(scenario: Scenario, context: str) -> RunDataset:
    """A scenario with its slices and hardware, from which, with a seed, simulated runs are drawn."""
    contents = {
        "scenario": dataclasses.asdict(scenario),
        "slices": dataclasses.asdict(scenario.slice_set()),
        "hardware": dataclasses.asdict(scenario.hardware_spec()),
    }
    profile = {
        "slices": len(scenario.slice_set()),
        "duration_s": scenario.duration_s,
        "period_s": scenario.control_period_s,
    }
    digest = hashlib.sha256(json.dumps(contents, sort_keys=True, default=str).encode()).hexdigest()[:DIGEST_LENGTH]
    return RunDataset(scenario.name, digest, None, context, profile)


def mixture_dataset(name: str, hardware: str | None) -> RunDataset:
    """A mixture that random deployments are drawn from; raises ConfigError for unknown names."""
    from slicepilot.configs import locate

    path = locate("mixtures", name)
    contents = hashlib.sha256(path.read_bytes())
    if hardware is not None:
        contents.update(locate("hardware", hardware).read_bytes())
    profile = {"hardware": hardware} if hardware else {}
    return RunDataset(name, contents.hexdigest()[:DIGEST_LENGTH], str(path), TRAINING, profile)


def digest_of(path: Path) -> str:
    """Of a file's contents, or of the names and contents of all files of a folder; raises OSError."""
    whole = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as opened:
            own = hashlib.file_digest(opened, "sha256")
        if file == path:
            return own.hexdigest()[:DIGEST_LENGTH]
        whole.update(f"{own.hexdigest()}  {file.relative_to(path)}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()[:DIGEST_LENGTH]
