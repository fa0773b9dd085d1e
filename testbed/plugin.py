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
    checks=f"{_HERE}.lifecycle.checks:checks",
    groups={"testbed": "A local 5G user plane: UPFs, SMF and load in network namespaces."},
    commands={
        "testbed up": Command(
            f"{_HERE}.cli.testbed:up",
            "Bring up one UPF process per slice, each in its own namespace and CPU cgroup, with PFCP sessions.",
        ),
        "testbed down": Command(
            f"{_HERE}.cli.testbed:down",
            "Remove what a testbed has made, also after a crash, and nothing else.",
        ),
        "testbed status": Command(f"{_HERE}.cli.testbed:status", "Say which testbeds are up and how their UPFs are."),
        "testbed verify": Command(
            f"{_HERE}.cli.verify:verify",
            "Find out by packets whether UPFs enforce gates, maximum bit rates and usage reports, whatever they say.",
        ),
        "testbed load": Command(
            f"{_HERE}.cli.testbed:load",
            "Play a scenario's loads against a testbed that is up, without control, and report what got through.",
        ),
        "testbed identify": Command(
            f"{_HERE}.cli.testbed:identify",
            "Fit the simulator's hardware parameters to this machine, and say how far off it is on loads it was not "
            "fitted on.",
        ),
        "bench loop": Command(
            f"{_HERE}.cli.bench_loop:loop",
            "Time of observe, infer, guard and apply, on real kernel maps, cgroups and shapers made for the purpose.",
        ),
        "bench probe": Command(
            f"{_HERE}.cli.bench_probe:probe",
            "Time per packet and point, share of packets matched, and throughput that a saturated UPF loses.",
        ),
        "bench upf": Command(
            f"{_HERE}.cli.bench_upf:upf",
            "Capacity, CPU use, loss and reordering of one UPF without per-packet work, and its PFCP round trips.",
        ),
        "bench reaction": Command(
            f"{_HERE}.cli.bench_reaction:reaction",
            "Time from the first packet of a burst until the priority slice's p99 delay, in windows of 10 ms, is back"
            " inside.",
        ),
        "bench scrape": Command(
            f"{_HERE}.cli.bench_scrape:scrape",
            "The loop's p99 while nobody reads the metrics, and while many scrape them at once, in turns.",
        ),
        "bench shadow": Command(
            f"{_HERE}.cli.bench_shadow:shadow",
            "Writes to knobs, as the kernel counts them, CPU time, and the UPFs' throughput and delay, with and "
            "without it.",
        ),
        "bench soak": Command(
            f"{_HERE}.cli.bench_soak:soak",
            "Faults and what became of them, and how much memory and how many descriptors the controller's processes "
            "gain.",
        ),
    },
)
