"""CPU time that two ways of timing every packet of a UPF take: a trace line per packet and point, matched offline, and the probe.

    python benchmarks/trace_probe/compare.py --pps 20000 --seconds 5 --repetitions 5

Needs root, clang, and what `slicepilot testbed up` needs. Both ways measure the same testbed at N3 and behind the shared
uplink, in turns. Counted is the time of the BPF programs by the kernel's statistics, of whoever reads what they write, and of the matching.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slicepilot.controller.cli.bench_probe import _points, _send, _unread_sink
from slicepilot.controller.telemetry import objects
from slicepilot.controller.telemetry.attachment import Attachment
from slicepilot.controller.telemetry.libbpf import BpfObject, count_run_time, run_stats
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.testbed.spec import TestbedSpec
from slicepilot.testbed.testbed import Testbed

HERE = Path(__file__).parent
READ_EVERY_S = 0.005  # as the control loop does
TRACEFS = Path("/sys/kernel/tracing")
