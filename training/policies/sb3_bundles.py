"""Bundles of policies that Stable-Baselines3 trained, which take PyTorch and a look into a file that may be anybody's.

No controller imports PyTorch, and root should not read such a file with all its privileges. So a process of its own
converts (`convert_process`), which gives them up first. The files are read here, and not looked into.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any

from slicepilot.agents.learned.bundle import Agreement, PolicyBundle, TrainingRecord
from slicepilot.agents.learned.onnx_files import bundle_of
from slicepilot.agents.learned.policy_names import PolicyName
from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.ownership import check_own
from slicepilot.configs.reading import read_file
from slicepilot.configs.text import on_a_line
from slicepilot.controller.system import own_programs
from slicepilot.env.slices import SliceSet

MOST_FILE_BYTES = 512 << 20
MOST_S = 600.0
SHOWN = 400


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


def bundle_of_sb3(name: PolicyName, slices: SliceSet | None = None) -> PolicyBundle:
    """The bundle of a file of Stable-Baselines3; the same file gives the same bundle.

    Args:
        name: of the policy.
        slices: that it was trained for; None: as `slicepilot.agents.learned.onnx_files.bundle_of`.

    Raises:
        ConfigError: the policy is refused, or is for another number of slices.
        FailureError: the process that converts it has ended without an answer.
    """
    source = Sb3Source.read(name)
    answer, model = _convert(source)
    if "refused" in answer:
        raise ConfigError(on_a_line(str(answer["refused"]), SHOWN))
    facts = answer["facts"]
    digests = [hashlib.sha256(part).hexdigest() for part in (source.model, source.statistics) if part is not None]
    record = TrainingRecord(
        algorithm=f"sb3:{name.name}",
        seed=_count(facts["seed"]),
        env_steps=_count(facts["num_timesteps"]),
        source=f"{name.path.name}, SHA-256 {', '.join(digests)}",
        versions={str(package): str(version) for package, version in facts["versions"].items()},
    )
    bundle = bundle_of(model, name.what, record, slices)
    agreement = Agreement(**{**answer["agreement"], "slice_counts": tuple(answer["agreement"]["slice_counts"])})
    return PolicyBundle(**{**vars(bundle), "agreement": agreement})


def _convert(source: Sb3Source) -> tuple[dict[str, Any], bytes]:
    """The answer of the process, and the model."""
    parts = [source.model, source.statistics or b""]
    head = {"policy": source.name.given, "bytes": [len(part) for part in parts]}
    try:
        done = subprocess.run(
            own_programs.python(f"{__package__}.convert_process"),
            input=b"\n".join([json.dumps(head).encode(), b"".join(parts)]),
            capture_output=True,
            cwd="/",
            env=own_programs.environment(),
            timeout=MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FailureError(f"{source.name.what}: not converted within {MOST_S:g} s") from error
    line, _, model = done.stdout.partition(b"\n")
    if done.returncode != 0 or not line:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {done.returncode}"]
        if "ModuleNotFoundError" in last[0]:
            raise FailureError(f"{source.name.what}: {last[0]}: pip install 'slicepilot[train]'")
        raise FailureError(f"{source.name.what}: its conversion failed: {on_a_line(last[0], SHOWN)}")
    answer: dict[str, Any] = json.loads(line)
    return answer, model


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
