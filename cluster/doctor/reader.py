"""Answers of the API server to the doctor: an object, that there is none, or why nothing is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.configs.backends import Check
from slicepilot.configs.text import printable

NEEDED_FOR = "kubernetes"
BUSY, TRIES, MOST_WAIT_S = 429, 4, 2.0
"""A server whose resource was defined just now answers 429 for a second or two."""


def checked(name: str, ok: bool, state: str, hint: str = "") -> Check:
    """A row of the doctor's."""
    return Check(name, ok, printable(state), NEEDED_FOR, hint)


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        document: the object; None where there is none, or nothing is known.
        why: why nothing is known; empty where it is.
    """

    document: Mapping[str, Any] | None = None
    why: str = ""

    @property
    def items(self) -> list[Mapping[str, Any]]:
        return list((self.document or {}).get("items") or ())


class ClusterReader:
    """Reads objects of a cluster; without an API only this machine is checked.

    Args:
        api: None: there is no server to ask.
    """

    def __init__(self, api: Api | None) -> None:
        self._api = api

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """An object or a list; of a kind that the server does not know there is none."""
        if self._api is None:
            return Answer(why="no API server to ask (--kubeconfig)")
        for attempt in range(TRIES):
            try:
                return Answer(self._api.get(path, query))
            except ApiError as error:
                if error.status == 404:
                    return Answer()
                if error.status != BUSY or attempt == TRIES - 1:
                    return Answer(why="not permitted" if error.status in (401, 403) else str(error))
                time.sleep(min(error.retry_after_s or 1.0, MOST_WAIT_S))
        raise AssertionError("a try ends in an answer")
