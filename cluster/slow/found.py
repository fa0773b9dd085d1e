"""What pods had before the API server was told of anything else: on this node's disk, for the agent that gives it back.

A pod does not leave its node, so nobody else will ever have to know. It is written before the first change of a pod.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slicepilot.configs import FailureError
from slicepilot.data.files import replace_file

FILE = ".followed-pods.json"
VERSION = 1
MOST_BYTES = 1 << 22


@dataclass(frozen=True)
class Found:
    """Of one pod.

    Attributes:
        container: whose limit it is.
        cpu_limit, cpu_request: as its specification had them; None: untouched.
        notes: annotations that were changed, with what they were; None: there was none.
    """

    namespace: str
    name: str
    container: str
    cpu_limit: str | None = None
    cpu_request: str | None = None
    notes: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to give back."""
        return self.cpu_limit is None and not self.notes


class FoundFile:
    """By the pods' uids.

    Args:
        folder: that only root writes; made if need be.

    Raises:
        FailureError: the file is not ours, or broken.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.pods: dict[str, Found] = {}
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FailureError(f"{self._path}: {error.strerror or error}") from error
        try:
            document = json.loads(data)
            if document["version"] != VERSION:
                raise ValueError(f"version = {document['version']!r:.20}")
            self.pods = {str(uid): Found(**one) for uid, one in document["pods"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FailureError(
                f"{self._path}: cannot be read ({error}); it says what to give back to pods: resize these by hand, "
                "then remove it"
            ) from error

    def put(self, uid: str, found: Found) -> None:
        """Of one pod, on disk when this returns; raises OSError."""
        self._save({**self.pods, uid: found})

    def drop(self, uids: Collection[str]) -> None:
        """Of pods that have gone, or have theirs back; raises OSError."""
        left = {uid: one for uid, one in self.pods.items() if uid not in uids}
        if len(left) != len(self.pods):
            self._save(left)

    def _save(self, pods: dict[str, Found]) -> None:
        document = {"version": VERSION, "pods": {uid: dataclasses.asdict(one) for uid, one in pods.items()}}
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(document).encode(), 0o600)
        self.pods = pods
