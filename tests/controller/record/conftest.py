"""Ticks of a controller that decides on five slices, as the ring holds them."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from slicepilot.controller.promotion.evidence import Evidence
from slicepilot.controller.promotion.signed import EvidenceFolder
from slicepilot.controller.record.estimate import window_ticks
from slicepilot.controller.record.ring import Records, fingerprint, record_dtype
from slicepilot.env.slices import SliceSet, SliceSpec
from slicepilot.env.telemetry import SLICE_FIELDS
from tests.testbed.controlled import constant

SLICES = SliceSet.from_yaml("testbed-five")
PERIOD_S = 0.005
START_NS = 1_770_000_000_000_000_000  # 2026-02-02T02:40:00Z


# Of every slice in every tick; what is not named is 0.
FIGURES = {
    "offered_mbps": 45.0,
    "carried_mbps": 40.0,
    "delay_p50_us": 120.0,
    "delay_p99_us": 590.0,
    "loss_ratio": 0.1,
    "cpu_use_mcpu": 391.0,
    "throttled_ratio": 0.25,
    "runqueue_delay_us": 12.0,
}


def description(run_id: str = "run-1", digest: str | None = None, **fields: Any) -> dict[str, Any]:
    """What is fixed for a run of them."""
    bundle = None if digest is None else {"path": "bundle", "digest": digest, "promoted": False}
    facts = {
        "run_id": run_id, "name": "node", "version": "0.1.0", "backend": "testbed", "agent": "captain",
        "bundle": bundle, "slice_set": dataclasses.asdict(SLICES), "period_s": PERIOD_S, "budget_s": 0.002,
        "logical_cpus": 2.0, "uplink_mbps": 1000.0, "threads": [1.0] * len(SLICES), "pid": 1, "started_ns": START_NS,
        "scheduling": "FIFO", "nice_scope": "group", "hardware": "testbed", "guard": {},
    }  # fmt: skip
    return json.loads(json.dumps(facts | fields))


def running(slices: Sequence[SliceSpec], **fields: Any) -> dict[str, Any]:
    """What is fixed for a run of these slices by this process, which has begun just now."""
    specs = {"slices": [dataclasses.asdict(spec) for spec in slices]}
    now = {"pid": os.getpid(), "started_ns": time.time_ns(), "scheduling": "SCHED_FIFO", "period_s": 0.01}
    return description(slice_set=specs, threads=[1.0] * len(slices), **now | fields)


def ticks(count: int, first: int = 1, generation: int = 2, num_slices: int = len(SLICES)) -> Records:
    """Uneventful ticks in shadow: what was wanted was let through, and everything is in time."""
    records = np.zeros(count, record_dtype(num_slices))
    number = np.arange(first, first + count)
    records["sequence"], records["description"] = number, generation
    records["time_ns"] = START_NS + (number - 1) * round(1e9 * PERIOD_S)
    records["monotonic_ns"] = records["time_ns"] - START_NS + 1_000
    records["slices"][:] = np.asarray([FIGURES.get(name, 0.0) for name in SLICE_FIELDS], np.float32)[None, :, None]
    records["node"], records["age_s"], records["log_density"] = (0.125, 0.2), 0.0005, np.nan
    for decision in ("wanted", "allowed", "applied"):
        records[decision][:, :, :] = np.asarray([500, -3, np.inf], np.float32)[None, :, None]
    stages = ("wakeup_ns", "observe_ns", "infer_ns", "guard_ns", "apply_ns")
    for stage, value in zip(stages, (12_000, 40_000, 85_000, 9_000, 22_000), strict=True):
        records[stage] = value
    records["valid"][:, :num_slices] = 1
    records["drawn"] = np.nan
    return records


def count(state: Path, records: Records, description: dict[str, Any], window_s: float = 5.0) -> Evidence:
    """Count ticks of one run in shadow as its controller does, and sign that in its state folder."""
    evidence, ticks = Evidence(), window_ticks(PERIOD_S)
    evidence.add(description, records)
    for start in range(0, len(records) - ticks + 1, round(window_s / PERIOD_S)):
        window = records[start : start + ticks]
        evidence.add_window(description, window, fingerprint(window))
    EvidenceFolder(state, create=True).save(description["run_id"], {description["bundle"]["digest"]: evidence})
    return evidence


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A policy that always wants the same, as a folder."""
    return Path(constant(tmp_path / "bundle", 0.0))


@pytest.fixture
def make_keys(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """A pair of files, private and public."""

    def make(name: str) -> tuple[Path, Path]:
        key = Ed25519PrivateKey.generate()
        private, public = tmp_path / f"{name}-private.pem", tmp_path / f"{name}-public.pem"
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return private, public

    return make


@pytest.fixture
def keys(make_keys: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    """One such pair."""
    return make_keys("own")
