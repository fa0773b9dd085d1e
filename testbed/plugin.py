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
        "testbed up": Command(
            f"{_HERE}.cli.testbed:up",
            "Start one UPF process per slice, each in its own namespace and CPU cgroup, with PFCP sessions.",
        ),
        "testbed down": Command(
            f"{_HERE}.cli.testbed:down",
            "Remove everything that a testbed has created, also after a crash.",
        ),
        "testbed status": Command(f"{_HERE}.cli.testbed:status", "Show running testbeds and the state of their UPFs."),
        "testbed load": Command(
            f"{_HERE}.cli.testbed:load",
            "Send a scenario's loads through a running testbed without control, and report the results.",
        ),
        "testbed identify": Command(
            f"{_HERE}.cli.testbed:identify",
            "Fit the simulator's hardware parameters to this machine, and report the errors on other loads.",
        ),
        "bench loop": Command(
            f"{_HERE}.cli.bench_loop:loop",
            "Measure the time of each stage of the loop on real kernel maps, cgroups and shapers.",
        ),
        "bench probe": Command(
            f"{_HERE}.cli.bench_probe:probe",
            (
                "Measure the cost of the probe per packet, its match ratio, and the throughput that a saturated UPF "
                "loses."
            ),
        ),
        "bench soak": Command(
            f"{_HERE}.cli.bench_soak:soak",
            "Run a live controller under injected faults, and measure its survival and memory growth.",
        ),
    },
)
