"""One rendering for all who ask at about the same time: what makes hundreds of concurrent scrapes cheap."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

FRESH_S = 0.25
OPENMETRICS = "application/openmetrics-text"


@dataclass
class _Rendered:
    body: bytes = b""
    at_s: float = float("-inf")


class Renderer:
    """Bytes of a kind, made at most every `FRESH_S` however often they are asked for."""

    def __init__(self, make: Callable[[], bytes], fresh_s: float = FRESH_S) -> None:
        self._make, self._fresh_s, self._last = make, fresh_s, _Rendered()

    def body(self) -> bytes:
        """The last rendering, or a new one when that is too old."""
        now_s = time.monotonic()
        if now_s - self._last.at_s >= self._fresh_s:
            self._last = _Rendered(self._make(), now_s)
        return self._last.body


class Exposition:
    """Metrics in the text format that a scraper accepts: OpenMetrics 1.0.0 or Prometheus' own 0.0.4.

    There are these two renderings and no more, whatever versions and escapings a header names: a scraper cannot make
    the cache useless. All our names are valid without escaping.
    """

    def __init__(self, collector: Collector) -> None:
        self._renderers: dict[bool, tuple[Renderer, str]] = {}
        for openmetrics, accept in ((False, ""), (True, OPENMETRICS)):
            encode, content_type = choose_encoder(accept)
            self._renderers[openmetrics] = Renderer(partial(encode, collector)), content_type

    def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an ``Accept`` header."""
        try:
            chosen = choose_encoder(accept)[1]
        except (ValueError, TypeError, IndexError):  # it parses versions that are none
            chosen = ""
        renderer, content_type = self._renderers[chosen.startswith(OPENMETRICS)]
        return renderer.body(), content_type


def json_renderer(document: Callable[[], dict[str, Any]]) -> Renderer:
    """The same for a JSON document; strict JSON."""
    return Renderer(lambda: json.dumps(document(), allow_nan=False, separators=(",", ":")).encode())
