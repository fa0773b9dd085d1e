"""What the testbed offers to the rest of `slicepilot`; see `slicepilot.configs.backends`."""

from __future__ import annotations

from slicepilot.configs.backends import BackendPlugin, Command

_HERE = "slicepilot.testbed"

BACKEND = BackendPlugin(
    name="testbed",
    open_backend=f"{_HERE}.backend.backend:open_backend",
    open_guarded=f"{_HERE}.backend.guarded:open_guarded",
    open_node=f"{_HERE}.backend.backend:open_node",
    missing=f"{_HERE}.lifecycle.testbed:missing",
    checks=f"{_HERE}.lifecycle.processes:checks",
    groups={"testbed": "Run a local 5G user plane in network namespaces."},
    commands={
        "testbed up": Command(f"{_HERE}.cli.testbed:up"),
        "testbed down": Command(f"{_HERE}.cli.testbed:down"),
        "testbed status": Command(f"{_HERE}.cli.testbed:status"),
        "testbed identify": Command(f"{_HERE}.cli.testbed:identify"),
        "bench loop": Command(f"{_HERE}.cli.bench_loop:loop"),
        "bench probe": Command(f"{_HERE}.cli.bench_probe:probe"),
        "bench soak": Command(f"{_HERE}.cli.bench_soak:soak"),
    },
)
