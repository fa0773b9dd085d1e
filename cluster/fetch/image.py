"""A bundle in a registry: which registries may be asked, and by which name and key.

Whoever writes SliceSets names the host of a request that the node makes. So only those are asked that the node's
operator lists; none, unless he does.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicepilot.cluster.resources.wanted import Wanted
from slicepilot.configs import ConfigError
from slicepilot.configs.reading import read_file

from .child import FetchError, ask

MODULE = "slicepilot.cluster.fetch.puller"
PULL_S = 60.0
MOST_FILE = 1 << 20
HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:]{2,45}\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_ENTRY = re.compile(rf"(?:(https?)://)?({HOST})/?")
_REFERENCE = re.compile(
    rf"({HOST})/({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@(sha256:[0-9a-f]{{64}}))?"
)
"""https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests, with the host."""


@dataclass(frozen=True)
class Registries:
    """Those that an operator lists.

    Attributes:
        schemes: ``https``, or ``http`` where he has said so, by host as a reference has it.
        authority: certificates (PEM) that theirs are signed by; None: those that this machine trusts.
        keys: credentials, as docker keeps them (``config.json``); None: none.
    """

    schemes: Mapping[str, str] = field(default_factory=dict)
    authority: Path | None = None
    keys: Path | None = None

    @classmethod
    def of(cls, entries: Iterable[str], authority: Path | None = None, keys: Path | None = None) -> Registries:
        """From options; raises ConfigError."""
        schemes = {}
        for entry in entries:
            found = _ENTRY.fullmatch(entry)
            if not found:
                raise ConfigError(f"bundle-registry = {entry!r}: accepted: HOST or HOST:PORT, or http://HOST:PORT")
            schemes[found[2].lower()] = found[1] or "https"
        return cls(schemes, authority, keys)


@dataclass(frozen=True)
class Reference:
    """An image by its registry's host, the repository there, and a tag or a digest."""

    host: str
    repository: str
    version: str

    @classmethod
    def of(cls, text: str) -> Reference:
        """Raises FetchError for what names no host: no registry stands for none."""
        found = _REFERENCE.fullmatch(text)
        if not found:
            raise FetchError(f"reference = {text!r:.200}: accepted: HOST[:PORT]/NAME[:TAG][@sha256:...]")
        return cls(found[1].lower(), found[2], found[4] or found[3] or "latest")


def fetch(wanted: Wanted, registries: Registries) -> dict[str, bytes]:
    """The files of the bundle; raises FetchError."""
    reference = Reference.of(wanted.name)
    if reference.host not in registries.schemes:
        raise FetchError(
            f"registry {reference.host!r:.200} is not among those that this node's operator lists (option "
            f"--bundle-registry); accepted: {', '.join(registries.schemes) or 'none here'}"
        )
    try:
        authority = None if registries.authority is None else _read(registries.authority)
        key = None if registries.keys is None else _key(_read(registries.keys), reference.host)
    except ConfigError as error:
        raise FetchError(str(error)) from error
    request = {
        "host": reference.host,
        "repository": reference.repository,
        "version": reference.version,
        "schemes": dict(registries.schemes),
        "authority": authority,
        "key": key,
        "seconds": PULL_S,
    }
    return ask(MODULE, request, PULL_S)


def _read(path: Path) -> str:
    return read_file(path, MOST_FILE, f"file {str(path)!r}").decode(errors="replace")


def _key(text: str, host: str) -> str | None:
    """User and password for one host, base64 as HTTP wants them; of other hosts nothing leaves this process."""
    accepted = ConfigError("the file of credentials of registries; accepted: docker's config.json, with auths")
    try:
        one: Any = (json.loads(text).get("auths") or {}).get(host)
        if one is None:
            return None
        if "auth" in one:
            return base64.b64encode(base64.b64decode(one["auth"], validate=True)).decode()
        return base64.b64encode(f"{one['username']}:{one['password']}".encode()).decode()
    except (ValueError, AttributeError, KeyError, TypeError, binascii.Error):
        raise accepted from None  # a traceback would quote it
