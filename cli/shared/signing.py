"""Options of commands that sign a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slicepilot.configs import ConfigError

Sign = Annotated[
    Path | None,
    typer.Option(
        help="Ed25519 private key (PEM) for signing (default: /etc/slicepilot/signing-key.pem, if it exists).",
        show_default=False,
    ),
]
NoSign = Annotated[bool, typer.Option("--no-sign", help="Do not sign the bundle.")]


def signing_key(sign: Path | None, no_sign: bool) -> Path | None:
    """The key to sign with; None: do not sign. Raises ConfigError for both options, or a file that is no such key."""
    from slicepilot.agents.learned import signature

    if no_sign and sign is not None:
        raise ConfigError("sign, no-sign: give at most one of them")
    key = None if no_sign else sign or signature.own_key()
    if key is not None:
        signature.load_private_key(key)
    return key
