"""The operator's configuration of the publisher; without pydantic, which the publisher does not import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Interval  # as pydantic's Field(ge=..., le=...)

from .logs import Form


@dataclass(frozen=True)
class PublishConfig:
    """What a controller publishes for other programs.

    Attributes:
        listen: address and port of metrics and status page, or ``off``; ``inherited``: a socket from systemd;
            ``local``: the Unix socket ``pages.sock`` in the run folder, for root and ``user``.
        hosts: names by which the pages may be requested, beside localhost, this machine's own and any address.
        group: members may use the control socket, beside root.
        user: the publishing process runs as this user, if the controller is root's.
        log: structured logs on standard error.
        records_mb: disk space for decision records; 0 keeps none.
        estimate_s: seconds between estimates of what the policy would change where it does not act; 0 makes none, and
            a run that starts live makes none: what they simulate with is compiled for minutes.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}
    listen: str = "off"
    hosts: tuple[str, ...] = ()
    group: str | None = None
    user: str = "nobody"
    log: Form = "json"
    records_mb: Annotated[float, Interval(ge=0, le=1_000_000)] = 256.0
    estimate_s: Annotated[float, Interval(ge=0, le=3600)] = 30.0
