"""Policies in MLflow: logged as ONNX models with their bundles beside, versions of a registered model, aliases.

``challenger`` is the version that was trained last, ``champion`` the version that `slicepilot promote` has promoted. A
version's tag ``slicepilot.digest`` has the digest of its bundle (`slicepilot.agents.learned.files.BundleFiles.digest`).
The registry is not trusted: downloads are checked against that tag, by the bundle's own sums, and by its signature
where a key is trusted.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import LIMITS_BYTES, PROMOTION_FILE, SIGNATURE_FILE, BundleFiles
from slicepilot.configs import ConfigError
from slicepilot.configs.text import on_a_line
from slicepilot.data.files import replace_file

from .tracking import DIGEST_TAG, Tracker, connected, quiet

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHALLENGER, CHAMPION = "challenger", "champion"
FOLDER = "bundle"
"""Of the bundle's files, in a model's artifacts."""
MOST_VERSIONS = 1000
EXAMPLE_SLICES = 3


@dataclass(frozen=True)
class Registered:
    """A version of a registered model, with its logged model."""

    name: str
    version: str
    model_id: str

    @property
    def address(self) -> str:
        """As ``--bundle`` takes it."""
        return f"models:/{self.name}/{self.version}"


def register(tracker: Tracker, bundle: PolicyBundle, name: str | None) -> Registered | None:
    """Log a run's policy, and make it the challenger among the versions of a registered model.

    If the server fails, the entry is lost, as with everything that a tracker sends.

    Args:
        tracker: of the run.
        bundle: saved.
        name: of the registered model; None logs the policy without registering it.
    """
    from mlflow.exceptions import MlflowException

    files = BundleFiles.read(bundle.origin or Path())
    with quiet():
        try:
            model_id = _logged(tracker, bundle, files)
            return None if name is None else _version(tracker.client, name, model_id, tracker.run_id, files, CHALLENGER)
        except (MlflowException, OSError):
            tracker.lost += 1
            return None


def _logged(tracker: Tracker, bundle: PolicyBundle, files: BundleFiles) -> str:
    """Log the policy as `mlflow.onnx`, for users without slicepilot, with the bundle beside; returns the model's id."""
    import mlflow
    import mlflow.onnx as mlflow_onnx
    import numpy as np
    import onnx
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    columns, actions = bundle.widths
    kind = np.dtype(np.float32)
    signature = ModelSignature(
        Schema([TensorSpec(kind, (-1, -1, columns), "observation")]),
        Schema([TensorSpec(kind, (-1, -1, actions), "action")]),
    )
    slices = len(bundle.slices) if not bundle.transfers else EXAMPLE_SLICES
    record = bundle.training
    tags = {DIGEST_TAG: files.digest, "algorithm": record.algorithm, "source": record.source}
    # In the run's experiment: without an active run MLflow would take its default experiment, and its folder.
    made = tracker.client.create_logged_model(
        tracker.experiment_id,
        "policy",
        source_run_id=tracker.run_id,
        tags=tags,
        params={"algorithm": record.algorithm, "seed": str(record.seed), "env_steps": str(record.env_steps)},
        model_type="policy",
    )
    # MLflow keeps the address for the whole process, and in the environment, which is all that it falls back on.
    library: Any = mlflow  # whose type does not know that None forgets the address
    before = os.environ.get("MLFLOW_TRACKING_URI")
    library.set_tracking_uri(tracker.uri)
    try:
        Model.log(
            artifact_path=None,
            flavor=mlflow_onnx,
            model_id=made.model_id,
            run_id=tracker.run_id,
            onnx_model=onnx.load_model_from_string(bundle.model),
            signature=signature,
            input_example={"observation": np.zeros((1, slices, columns), np.float32)},
            pip_requirements=[f"onnxruntime=={metadata.version('onnxruntime')}"],
            onnx_execution_providers=["CPUExecutionProvider"],
            save_as_external_data=False,
            metadata={"digest": files.digest, "coding": bundle.coding, "slices": list(bundle.slices.names)},
        )
    finally:
        library.set_tracking_uri(None)
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before
    _upload(tracker.client, made.model_id, files, tuple(files.parts))
    tracker.client.finalize_logged_model(made.model_id, "READY")
    return str(made.model_id)


def _upload(client: MlflowClient, model_id: str, files: BundleFiles, names: tuple[str, ...]) -> None:
    """Store files of a bundle, as they were read, with a logged model."""
    with tempfile.TemporaryDirectory(prefix="slicepilot-bundle-") as folder:
        for name in names:
            path = Path(folder) / name
            replace_file(path, files.part(name))
            client.log_model_artifact(model_id, str(path), FOLDER)


def _version(client: Any, name: str, model_id: str, run_id: str | None, files: BundleFiles, alias: str) -> Registered:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name, description="Policies of slicepilot (docs/training.md, MLflow).")
    made = client.create_model_version(
        name, f"models:/{model_id}", run_id, tags={DIGEST_TAG: files.digest}, model_id=model_id
    )
    client.set_registered_model_alias(name, alias, str(made.version))
    return Registered(name, str(made.version), model_id)


def versions_of(client: MlflowClient, digest: str) -> list[Registered]:
    """The versions of any registered model that hold a bundle, the newest first."""
    versions = client.search_model_versions(f"tags.`{DIGEST_TAG}` = '{digest}'", max_results=MOST_VERSIONS)
    newest = sorted(versions, key=lambda version: -int(version.creation_timestamp))
    return [
        Registered(str(v.name), str(v.version), str(v.source).rpartition("/")[2])
        for v in newest
        if str(v.source).startswith("models:/m-")
    ]


class Champions:
    """The registry, in which a promotion is entered; it is contacted before the bundle is judged.

    Args:
        digest: of the bundle.

    Raises:
        ConfigError: the registry does not answer (see `Tracker`), or has no version of the bundle.
    """

    def __init__(self, uri: str, digest: str) -> None:
        self._uri = uri
        with connected(uri) as self._client:
            versions = versions_of(self._client, digest)
        if not versions:
            raise ConfigError(
                f"MLFLOW_TRACKING_URI: no registered model has the bundle {digest[:12]}; expected a bundle that "
                "`slicepilot train` has logged there; write --no-mlflow to promote it without the registry"
            )
        self.versions = versions

    def enter(self, files: BundleFiles) -> Registered:
        """Store the promotion with the newest version of the bundle, and make that the champion.

        The older champion stays the champion until certificate and signature are stored.

        Raises:
            ConfigError: the registry refuses it; the bundle's own folder is promoted all the same.
        """
        newest = self.versions[0]
        with connected(self._uri) as client:
            names = tuple(name for name in (PROMOTION_FILE, SIGNATURE_FILE) if name in files.parts)
            _upload(client, newest.model_id, files, names)
            client.set_registered_model_alias(newest.name, CHAMPION, newest.version)
        return newest


@dataclass(frozen=True)
class Download:
    """A version's entry in the registry."""

    name: str
    version: str
    digest: str
    run_id: str | None


def download(address: str, folder: Path) -> Download:
    """Store the bundle of a registered version in a folder, unchecked: only files of a bundle, by their names.

    Args:
        address: ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION``.
        folder: empty, this user's alone.

    Raises:
        ConfigError: an address of another form, no such model, version or alias, a version without a bundle, a
            registry that does not answer.
    """
    from mlflow.exceptions import MlflowException

    from .store import tracking_uri

    name, alias, version = parsed(address)
    uri = tracking_uri()
    with connected(uri) as client:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        try:
            entry = client.get_model_version_by_alias(name, alias) if alias else client.get_model_version(name, version)
        except MlflowException as error:
            raise ConfigError(
                f"bundle = {address!r}: {on_a_line(str(error)).rstrip('.')}; expected models:/NAME@ALIAS or "
                "models:/NAME/VERSION"
            ) from error
        digest = entry.tags.get(DIGEST_TAG)
        if digest is None:
            raise ConfigError(
                f"bundle = {address!r}: version {entry.version} has no tag {DIGEST_TAG}; expected a version that "
                "`slicepilot train` has registered"
            )
        where = client.get_model_version_download_uri(name, str(entry.version))
        repository: Any = get_artifact_repository(where, tracking_uri=uri)
        there = {item.path for item in repository.list_artifacts(FOLDER)}
        # File by file, to a path of our own: the server's listing only decides which of the known files exist.
        for part, most in LIMITS_BYTES.items():
            if f"{FOLDER}/{part}" in there:
                with _at_most(most):
                    repository._download_file(f"{FOLDER}/{part}", str(folder / part))
    return Download(name, str(entry.version), str(digest), entry.run_id)


@contextmanager
def _at_most(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes (OSError), as a server may send data without end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def parsed(address: str) -> tuple[str, str, str]:
    """Name, alias and version of an address; either of the last two is empty. Raises ConfigError."""
    rest = address.removeprefix("models:").lstrip("/")
    name, at, alias = rest.partition("@")
    if at and name and alias and "/" not in rest:
        return name, alias, ""
    name, slash, version = rest.rpartition("/")
    if slash and name and "/" not in name and version.isascii() and version.isdecimal():
        return name, "", version
    raise ConfigError(f"bundle = {address!r}: expected models:/NAME@ALIAS or models:/NAME/VERSION")
