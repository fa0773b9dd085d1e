"""``slicepilot run --mlflow``: the summary of a controller's run, in MLflow."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.cli.shared.registry import MOST_S, answer_of, start_mlflow
from slicepilot.configs import FailureError

if TYPE_CHECKING:
    from slicepilot.controller.service.run_config import RunConfig
    from slicepilot.training.runs.labels import RunLabels

MOST_LINE = 10_000
FIGURES = (
    *("offered_mbps", "carried_mbps", "lost_pct", "delay_p99_us", "late_ticks_pct", "broken_s", "broken_by_rate_s"),
    "measured_pct",
)


class MlflowRun:
    """A run in MLflow, held by a process of its own, because a controller never imports MLflow.

    That process is started before the controller, which gives its privileges up, and has reached the server when this
    returns. When the controller ends without a summary, its run in MLflow is marked as killed.

    Raises:
        ConfigError: MLflow cannot be used.
    """

    def __init__(self, settings: RunConfig, address: Path | str | None, labels: RunLabels) -> None:
        from slicepilot.training.runs.labels import called

        tags = {"mode": settings.mode, **called(), **labels.tags}
        if settings.bundle is not None:
            from slicepilot.agents.learned.files import BundleFiles

            tags |= {"bundle": str(address or settings.bundle), "digest": BundleFiles.read(settings.bundle).digest}
        where = settings.scenario or settings.node or settings.name
        start = {
            "name": labels.name(f"{settings.mode} on {Path(where).stem}", None),
            "source": f"scenario {where}" if settings.scenario else f"node {where}",
            "tags": tags,
            "parameters": dataclasses.asdict(settings) | {"policy": settings.policy},
        }
        self._process = start_mlflow("log", stdin=subprocess.PIPE)
        self._send(start)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], MOST_S)
        answer = self._process.stdout.readline(MOST_LINE) if ready else b""
        if not answer.endswith(b"\n"):
            if not ready:
                self._process.kill()
            out, err = self._process.communicate()
            answer_of(self._process.returncode or 1, out, err)
        self.run_id: str = json.loads(answer)["run_id"]

    def _send(self, document: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says why
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()

    def finish(self, document: dict[str, Any]) -> None:
        """Log the summary, the JSON of ``slicepilot run``, and end the run.

        Raises:
            FailureError: the server has gone meanwhile.
        """
        text = json.dumps(document, indent=1)
        self._send({"status": "FINISHED", "tags": {}, "metrics": summary_of(document), "texts": {"run.json": text}})
        try:
            out, err = self._process.communicate(timeout=MOST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise FailureError(f"MLflow: the summary was not written in {MOST_S:.0f} s") from None
        if self._process.returncode:
            answer_of(self._process.returncode, out, err)


def summary_of(document: dict[str, Any]) -> dict[str, float]:
    """Figures of a run by name: of each slice, of what was in charge, and of the loop."""
    figures: dict[str, float] = {}
    for row in document["slices"]:
        figures |= {f"{row['slice']}/{key}": row[key] for key in FIGURES}
    figures["broken_s"] = sum(row["broken_s"] for row in document["slices"])
    figures |= {f"in_charge/{key}": share for key, share in (document["in_charge"] or {}).items()}
    loop = document["loop"]
    figures |= {f"loop/{key}": loop[key] for key in ("ticks", "late_ticks", "missed_ticks", "failed_applies")}
    for stage in ("total_us", "infer_us"):
        figures |= {f"loop/{stage}/{key}": value for key, value in loop.get(stage, {}).items()}
    figures |= {f"guard/{reason}": count for reason, count in loop["interventions"].items()}
    return figures
