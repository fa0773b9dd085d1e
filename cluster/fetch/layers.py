"""What a registry's layers hold of a bundle: plain files as `oras push` makes them, or archives of some.

Of an archive regular files with a bundle's names are taken, and nothing is written anywhere. Sizes are bounded before
anything is unpacked, what comes out of compression as it comes.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any

from slicepilot.agents.learned.files import LIMITS_BYTES

from .child import FetchError

TITLE = "org.opencontainers.image.title"
"""https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md#pre-defined-annotation-keys"""
UNPACK = "io.deis.oras.content.unpack"
MOST_LAYERS = 16
MOST_PACKED = 48 << 20
MOST_UNPACKED = 96 << 20
MOST_MEMBERS = 1000
GZIP = b"\x1f\x8b"
CHUNK = 1 << 16


class Unpacked:
    """Files found so far; what a later layer has goes before that of an earlier one."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._left = MOST_UNPACKED

    def add(self, layer: Mapping[str, Any], data: bytes) -> None:
        """A layer with its descriptor in the manifest; raises FetchError."""
        name = plain_name(layer)
        if name is None:
            self._add_archive(self._expanded(data) if data.startswith(GZIP) else data)
        elif name in LIMITS_BYTES:
            self._put(name, data)

    def _put(self, name: str, data: bytes) -> None:
        if len(data) > LIMITS_BYTES[name]:
            raise FetchError(f"{name}: more than {LIMITS_BYTES[name]} bytes")
        self.files[name] = data

    def _expanded(self, data: bytes) -> bytes:
        """gzip, which may have several members (RFC 1952, section 2.2)."""
        found = bytearray()
        rest = data
        try:
            while rest:
                member = zlib.decompressobj(31)
                while not member.eof:
                    found += member.decompress(rest, CHUNK)
                    rest = member.unused_data if member.eof else member.unconsumed_tail
                    if len(found) > self._left:
                        raise FetchError(f"layers come to more than {MOST_UNPACKED} bytes when they are unpacked")
                    if not member.eof and not rest:
                        raise FetchError("a layer's gzip ends too soon")
        except zlib.error as error:
            raise FetchError("a layer is no gzip, although it begins like one") from error
        self._left -= len(found)
        return bytes(found)

    def _add_archive(self, data: bytes) -> None:
        found: dict[str, tuple[str, bytes]] = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                for count, one in enumerate(archive, 1):
                    if count > MOST_MEMBERS:
                        raise FetchError(f"a layer of more than {MOST_MEMBERS} files; accepted: one of a bundle alone")
                    folder, _, name = one.name.removeprefix("./").rpartition("/")
                    if name not in LIMITS_BYTES:
                        continue
                    if one.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or one.issparse():
                        raise FetchError(f"{name}: expected a regular file, not a link, pipe or device")
                    if one.size > LIMITS_BYTES[name]:
                        raise FetchError(f"{name}: more than {LIMITS_BYTES[name]} bytes")
                    if name in found and found[name][0] != folder:
                        raise FetchError(f"{name}: in two folders; accepted: one bundle")
                    content = archive.extractfile(one)
                    assert content is not None  # it is a regular file
                    found[name] = folder, content.read(LIMITS_BYTES[name])
        except tarfile.TarError as error:
            raise FetchError("a layer is no tar, nor a file with a title; accepted: tar, tar+gzip, files") from error
        for name, (_, whole) in found.items():
            self._put(name, whole)


def plain_name(layer: Mapping[str, Any]) -> str | None:
    """The name of a layer that is a file; None for an archive."""
    notes = layer.get("annotations")
    if not isinstance(notes, dict) or TITLE not in notes or notes.get(UNPACK) == "true":
        return None
    return str(notes[TITLE])
