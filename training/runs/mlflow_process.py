"""A process that talks to MLflow for a command that must not import it: above all for a controller.

``download ADDRESS FOLDER`` stores a registered bundle's files in a folder, and prints what the registry says of it.
``log`` starts a run as the first line of standard input says, and prints its id. The second line ends the run; without
it, the run is marked as killed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError, FailureError

from .labels import provenance
from .registry import download
from .tracking import Tracker, finite_only


def main(arguments: list[str]) -> int:
    """Do what the arguments say; returns the exit code, as the command line does."""
    try:
        if arguments[0] == "download":
            address, folder = arguments[1:]
            _answer(dataclasses.asdict(download(address, Path(folder))))
        else:
            _log()
    except (ConfigError, FailureError) as error:
        print(f"slicepilot: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _log() -> None:
    start: dict[str, Any] = json.loads(sys.stdin.readline())
    tags = provenance(start["source"], {}) | start["tags"]
    tracker = Tracker(start["name"], tags=tags)
    tracker.parameters(start["parameters"])
    _answer({"run_id": tracker.run_id})
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        tracker.finish("KILLED")
        return
    end: dict[str, Any] = json.loads(line)
    tracker.metrics(finite_only(end["metrics"]), step=0)
    tracker.tags(end["tags"])
    for name, text in end["texts"].items():
        tracker.text(name, text)
    tracker.finish(end["status"])
    tracker.require_complete()


def _answer(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
