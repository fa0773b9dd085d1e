"""The shipped bundle as somebody else's, and what identifies it."""

from __future__ import annotations

import hashlib

from slicepilot.agents.learned.files import DESCRIPTION_FILE, MODEL_FILE, SUMS_FILE
from slicepilot.agents.learned.shipped import GENERALIST, SHIPPED


def parts(mark: str = "") -> dict[str, bytes]:
    """Its files; with a mark, a bundle of the same policy with other files."""
    result = {name: (SHIPPED / GENERALIST / name).read_bytes() for name in (MODEL_FILE, DESCRIPTION_FILE)}
    if mark:
        result[DESCRIPTION_FILE] += f"# {mark}\n".encode()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(result.items()))
    return result | {SUMS_FILE: sums.encode()}


def digest(of: dict[str, bytes]) -> str:
    """As a SliceSet has it."""
    return hashlib.sha256(of[SUMS_FILE]).hexdigest()
