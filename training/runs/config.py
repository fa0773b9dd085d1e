"""What the configurations of training runs have in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Self

from slicepilot.configs import ConfigError, load, validate


class RunSettings:
    """Base of a configuration's dataclass, ``configs/SECTION/NAME.yaml``.

    Attributes:
        section: its folder.
        free: fields in which a resumed run may differ from its checkpoint: budget, device and tracking.
        checked: the type that fields are checked against together, where that is more than the dataclass.
    """

    section: ClassVar[str]
    free: ClassVar[frozenset[str]]
    checked: ClassVar[Any] = None

    @classmethod
    def from_yaml(cls, name_or_path: str | Path) -> Self:
        """Load ``configs/SECTION/NAME.yaml`` or a user's file; raises ConfigError."""
        settings: Self = load(cls.section, name_or_path, cls.checked or cls)
        return settings

    @classmethod
    def of(cls, values: dict[str, Any], source: str) -> Self:
        """From plain values, as in a checkpoint; raises ConfigError."""
        settings: Self = validate(cls.checked or cls, values, source)
        return settings

    @classmethod
    def resumed(cls, stored: dict[str, Any], given: Self | None) -> Self:
        """A checkpoint's configuration; the given one may differ from it in ``free`` fields only.

        Raises:
            ConfigError: names the first other field that differs.
        """
        kept = cls.of(stored, "checkpoint: config")
        for name, new in ({} if given is None else vars(given)).items():
            if name not in cls.free and new != (old := getattr(kept, name)):
                raise ConfigError(f"{name} = {new!r}: expected {old!r} with resume, as in the checkpoint")
        return given or kept

    def override(self, **values: Any) -> Self:
        """A checked copy with the values that are not None."""
        given = {key: value for key, value in values.items() if value is not None}
        return self.of(dataclasses.asdict(self) | given, "command line") if given else self  # type: ignore[call-overload]
