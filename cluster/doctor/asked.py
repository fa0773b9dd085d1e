"""What the API server answers, where it may be asked: an object, that there is none, or why nothing is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError

NEEDED_FOR = "kubernetes"
BUSY, TRIES, MOST_WAIT_S = 429, 4, 2.0
"""A server whose resource was declared just now says so for a second or two."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        found: the object; None where there is none, or nothing is known.
        why: nothing is known; empty where it is.
    """

    found: Mapping[str, Any] | None = None
    why: str = ""

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """Of a list."""
        return list((self.found or {}).get("items") or ())


class Asked:
    """Answers of one server; without one nothing is known of the cluster, but all that is on this machine.

    Args:
        api: to it; None: there is none to ask.
    """

    def __init__(self, api: Api | None) -> None:
        self._api = api

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """An object or a list. A kind of object that the server does not know is one of which there is none."""
        if self._api is None:
            return Answer(why="no API server to ask (--kubeconfig)")
        for attempt in range(TRIES):
            try:
                return Answer(self._api.get(path, query))
            except ApiError as error:
                if error.status == 404:
                    return Answer()
                if error.status != BUSY or attempt == TRIES - 1:
                    return Answer(why="not allowed to look" if error.status in (401, 403) else str(error))
                time.sleep(min(error.retry_after_s or 1.0, MOST_WAIT_S))
        raise AssertionError("a try ends in an answer")
