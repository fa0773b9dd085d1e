"""An evaluation as a folder: ``results.json`` to read, ``arrays.npz`` with everything a report needs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError, load
from slicepilot.data.files import replace_file
from slicepilot.env.simulator.hardware import HardwareFile

from .comparison import RIVALS, AgentResult, ScenarioResult, finite, over_json

FORMAT = 3
RESULTS_FILE, ARRAYS_FILE = "results.json", "arrays.npz"


@dataclass(frozen=True)
class Provenance:
    """Provenance of figures: time, machine, versions and command."""

    created: str
    command: str
    machine: str
    versions: dict[str, str]

    @classmethod
    def here(cls, command: str) -> Provenance:
        """This machine, now."""
        packages = ("slicepilot", "numpy", "onnxruntime")
        return cls(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            machine=f"{_processor()}, {os.cpu_count()} logical CPUs, {platform.system()} {platform.release()}",
            versions={"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


@dataclass(frozen=True)
class Evaluation:
    """Results of several scenarios with their provenance.

    Attributes:
        fits: calibration errors of each hardware.
        candidates: of each learned policy by its name: address, digest and MLflow run of its bundle, and the
            configuration of its training.
    """

    scenarios: tuple[ScenarioResult, ...]
    provenance: Provenance
    fits: dict[str, dict[str, float]]
    candidates: dict[str, dict[str, Any]] = field(default_factory=dict)


def hardware_fits(results: Iterable[ScenarioResult]) -> dict[str, dict[str, float]]:
    """Calibration errors of each hardware in use, as its file states them; empty for hardware that is not fitted."""
    return {name: load("hardware", name, HardwareFile).fit for name in dict.fromkeys(r.hardware for r in results)}


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write both files, each by a temporary file that is renamed; the JSON, which names the arrays' sum, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for i, result in enumerate(evaluation.scenarios):
        for j, agent in enumerate(result.agents):
            arrays |= {f"{i}/{j}/scores/{key}": values for key, values in agent.scores.items()}
            arrays[f"{i}/{j}/ecdf_us"] = agent.ecdf_us
            if agent.trace is not None:
                arrays[f"{i}/{j}/trace"] = agent.trace
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    packed = buffer.getvalue()
    document = {
        "format": FORMAT,
        "arrays_sha256": hashlib.sha256(packed).hexdigest(),
        "provenance": asdict(evaluation.provenance),
        "fits": evaluation.fits,
        "candidates": evaluation.candidates,
        "scenarios": [_scenario_document(result) for result in evaluation.scenarios],
    }
    replace_file(folder / ARRAYS_FILE, packed)
    replace_file(folder / RESULTS_FILE, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def _scenario_document(result: ScenarioResult) -> dict[str, Any]:
    plain = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "agents"}
    return {
        **plain,
        "best_fixed": result.best_fixed,
        "verdicts": [
            {"subject": name, **{f"over_{which}": over_json(result.over(name, which)) for which in RIVALS}}
            for name in result.subjects
        ],
        "agents": [
            {
                "name": agent.name,
                "role": agent.role,
                "wall_s": agent.wall_s,
                "summary": {
                    key: {name: finite(value) for name, value in asdict(result.summary(agent.name, key)).items()}
                    for key in agent.scores
                },
            }
            for agent in result.agents
        ],
    }


def read(folder: Path) -> Evaluation:
    """Read results that `save` wrote.

    Raises:
        ConfigError: missing or damaged files, or files of another program.
    """
    try:
        document = json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
        packed = (folder / ARRAYS_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"results: file {error.filename!r}: {error.strerror}; write them with: slicepilot evaluate"
        ) from error
    except ValueError as error:
        raise ConfigError(f"results: file {str(folder / RESULTS_FILE)!r}: not valid JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f"results: file {str(folder / RESULTS_FILE)!r}: not an evaluation of format {FORMAT}")
    if document.get("arrays_sha256") != hashlib.sha256(packed).hexdigest():
        raise ConfigError(f"results: file {str(folder / ARRAYS_FILE)!r} does not belong to {RESULTS_FILE} beside it")
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            scenarios = tuple(
                _scenario(plain, {key.split("/", 1)[1]: arrays[key] for key in arrays if key.startswith(f"{i}/")})
                for i, plain in enumerate(document["scenarios"])
            )
        provenance, candidates = Provenance(**document["provenance"]), document.get("candidates", {})
        return Evaluation(scenarios, provenance, document["fits"], candidates)
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"results: folder {str(folder)!r}: incomplete or damaged ({error})") from error


def _scenario(plain: dict[str, Any], arrays: dict[str, Any]) -> ScenarioResult:
    agents = []
    for j, agent in enumerate(plain["agents"]):
        own = {key.split("/", 1)[1]: value for key, value in arrays.items() if key.startswith(f"{j}/")}
        scores = {key.removeprefix("scores/"): value for key, value in own.items() if key.startswith("scores/")}
        agents.append(
            AgentResult(agent["name"], agent["role"], scores, own["ecdf_us"], own.get("trace"), agent["wall_s"])
        )
    saved = {f.name: plain[f.name] for f in fields(ScenarioResult) if f.name != "agents"}
    known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    return ScenarioResult(**known, agents=tuple(agents))


def candidate_of(address: str, digest: str, training: Any) -> dict[str, Any]:
    """Facts of a learned policy that an evaluation stores.

    ``address`` is its bundle as on the command line, ``training`` a `slicepilot.agents.learned.bundle.TrainingRecord`.
    """
    return {
        "bundle": address,
        "digest": digest,
        "run_id": training.run_id,
        "algorithm": training.algorithm,
        "source": training.source,
        "training": training.config,
    }
