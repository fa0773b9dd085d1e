"""Cilium's map of rates, opened where it is pinned and checked before anything is read from it."""

from __future__ import annotations

import errno
from pathlib import Path

from slicepilot.controller.system.bpf.btf import Btf, BtfError
from slicepilot.controller.system.bpf.pinned import NotRootsError, PinnedMap, type_data
from slicepilot.controller.system.kernel_file import ActuatorError

from .layout import NAME, VALUE_BYTES, Entry, LayoutError, check_map, check_types, entry_of, key_of

PIN = Path("/sys/fs/bpf/tc/globals") / NAME
"""``TCGlobalsPath`` of pkg/defaults below the default ``--bpf-root``."""


class ThrottleMap:
    """The map, open.

    Args:
        path: where it is pinned.

    Attributes:
        info: what the kernel says of it; typed: whether that has types of its keys and values, which were checked.

    Raises:
        ActuatorError: no map is pinned there (`vanished`), it is not Cilium's, or other users may write to it.
    """

    def __init__(self, path: Path = PIN) -> None:
        self.path = path
        try:
            self._map = PinnedMap.open(path)
        except NotRootsError as error:
            raise ActuatorError(f"Cilium's map of rates: {error}") from None
        except OSError as error:
            raise ActuatorError.of(f"{path}: open Cilium's map of rates", error) from error
        try:
            self.info = info = self._map.info()
            check_map(info)
            self.typed = bool(info.btf_id and info.key_type and info.value_type)
            if self.typed:
                check_types(Btf(type_data(info.btf_id)), info)
        except (BtfError, LayoutError) as error:
            self.close()
            raise ActuatorError(f"{path}: not Cilium's map of rates as it is known: {error}") from None
        except OSError as error:
            self.close()
            raise ActuatorError.of(f"{path}: look at Cilium's map of rates", error) from error

    def value(self, endpoint: int) -> bytes | None:
        """The raw value of an endpoint's egress; None if it has no entry. Raises ActuatorError."""
        try:
            return self._map.lookup(key_of(endpoint), VALUE_BYTES)
        except OSError as error:
            raise ActuatorError.of(f"{self.path}: read the rate of endpoint {endpoint}", error) from error

    def entry(self, endpoint: int) -> Entry | None:
        value = self.value(endpoint)
        return None if value is None else entry_of(value)

    def replace(self, endpoint: int, value: bytes) -> bool:
        """Put a value instead of an endpoint's; whether it had an entry. Makes none; raises ActuatorError."""
        try:
            return self._map.replace(key_of(endpoint), value)
        except OSError as error:
            raise ActuatorError.of(f"{self.path}: set the rate of endpoint {endpoint}", error) from error

    def close(self) -> None:
        self._map.close()


class OpenMaps:
    """Maps that stay open, for a process that will not be allowed to open any: the supervisor."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], ThrottleMap] = {}

    @property
    def any(self) -> bool:
        return bool(self._open)

    def get(self, pin: str, map_id: int) -> ThrottleMap:
        """The map with this number, opened once; raises ActuatorError where another is pinned there, or none."""
        if (pin, map_id) not in self._open:
            fresh = ThrottleMap(Path(pin))
            if fresh.info.id != map_id:
                fresh.close()
                raise ActuatorError(f"{pin}: Cilium has made the map anew", errno.ENOENT)
            self._open[pin, map_id] = fresh
        return self._open[pin, map_id]


def pinned_id(path: Path) -> int | None:
    """Number of the map that is pinned at a path now; None where none is, or none that is root's."""
    try:
        result = PinnedMap.open(path)
    except (OSError, NotRootsError):
        return None
    try:
        return result.info().id
    except OSError:
        return None
    finally:
        result.close()
