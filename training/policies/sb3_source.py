"""The files of a policy of Stable-Baselines3, read and not looked into."""

from __future__ import annotations

import os
from dataclasses import dataclass

from slicepilot.agents.learned.policy_names import PolicyName
from slicepilot.configs.ownership import check_own
from slicepilot.configs.reading import read_file

MOST_FILE_BYTES = 512 << 20


@dataclass(frozen=True)
class Sb3Source:
    """The bytes of a policy's file and of its `VecNormalize`'s, as they were read.

    Attributes:
        name: as it was given.
        model: the ZIP archive.
        statistics: of `VecNormalize.save`; None: without.
    """

    name: PolicyName
    model: bytes
    statistics: bytes | None = None

    @classmethod
    def read(cls, name: PolicyName) -> Sb3Source:
        """Read the files.

        Raises:
            ConfigError: a file is missing; root is given a file that other users can change.
        """
        contents = []
        for path in (name.path, name.statistics):
            if path is not None and os.geteuid() == 0:
                check_own(path, f"{name.what}: ", "make a bundle of it as its user: slicepilot bundle import")
            contents.append(None if path is None else read_file(path, MOST_FILE_BYTES, name.what))
        model, statistics = contents
        assert model is not None
        return cls(name, model, statistics)
