"""What the HTTP listener shows: the status page, the status document and the metrics."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from prometheus_client.registry import Collector

from .metrics.exposition import Exposition, json_renderer
from .state.status import Status
from .web import Page, Route

PACKAGE = __name__.rpartition(".")[0]


def routes(status: Status, collector: Collector) -> dict[str, Route]:
    """The pages by path; each reads nothing but memory."""
    exposition, document, page = Exposition(collector), json_renderer(status.document), status_page()

    def metrics(headers: dict[str, str]) -> Page:
        return Page(*exposition.render(headers.get("accept", "")))

    def status_json(headers: dict[str, str]) -> Page:
        return Page(document.body(), "application/json")

    return {"/": lambda headers: page, "/metrics": metrics, "/status.json": status_json}


def status_page() -> Page:
    """The page as it is packaged, under a policy that lets run and fetch nothing but what is in it."""
    text = resources.files(PACKAGE).joinpath("status.html").read_text(encoding="utf-8")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash_of('script', text)}",
            f"style-src {_hash_of('style', text)}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return Page(text.encode(), "text/html; charset=utf-8", (("Content-Security-Policy", policy),))


def _hash_of(tag: str, text: str) -> str:
    """The source expression of an inline element (CSP level 3, section 2.3.1)."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
