"""The original values of pods that follow their loops, on this node's disk, for the agent that puts them back.

A pod never leaves its node, so no other node needs them. They are written before the first change of a pod.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slicepilot.configs import FailureError
from slicepilot.data.files import replace_file

FILE = ".followed-pods.json"
VERSION = 1
MOST_BYTES = 1 << 22


@dataclass(frozen=True)
class Original:
    """The original values of one pod.

    Attributes:
        container: that the limit is of.
        cpu_limit, cpu_request: as specified; None: untouched.
        notes: values of the changed annotations; None: the annotation was not there.
    """

    namespace: str
    name: str
    container: str
    cpu_limit: str | None = None
    cpu_request: str | None = None
    notes: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.cpu_limit is None and not self.notes

    def without_limit(self) -> Original:
        """Without the limit, which is not to be put back any more."""
        return dataclasses.replace(self, cpu_limit=None, cpu_request=None)

    def without(self, *notes: str) -> Original:
        left = {key: value for key, value in self.notes.items() if key not in notes}
        return dataclasses.replace(self, notes=left)


class OriginalsFile:
    """Originals by the pods' uids.

    Args:
        folder: that only root writes; made if it does not exist.

    Raises:
        FailureError: the file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.pods: dict[str, Original] = {}
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
            self.pods = {str(uid): Original(**values) for uid, values in document["pods"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FailureError(
                f"{self._path}: cannot be read ({error}); it has the original values of pods: resize these by hand, "
                "then remove the file"
            ) from error

    def put(self, uid: str, original: Original) -> None:
        """Store those of one pod, on disk when this returns; empty originals are removed. Raises OSError."""
        if original.empty:
            self.drop(uid)
        elif original != self.pods.get(uid):
            self._save({**self.pods, uid: original})

    def drop(self, uid: str) -> None:
        if uid in self.pods:
            self._save({key: original for key, original in self.pods.items() if key != uid})

    def _save(self, pods: dict[str, Original]) -> None:
        document = {"version": VERSION, "pods": {uid: dataclasses.asdict(item) for uid, item in pods.items()}}
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(document).encode(), 0o600)
        self.pods = pods
