"""``slicepilot k8s agent``: the agent of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def agent(
    node: Annotated[str, typer.Option(help="Name of this node in the cluster.")],
    kubeconfig: Annotated[
        Path | None, typer.Option(help="kubeconfig of the cluster (default: this pod's service account).")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the agents' Leases.")] = "slicepilot-system",
    run_root: Annotated[Path, typer.Option(help="Folder for sockets and shared memory.")] = Path("/run/slicepilot"),
    state_root: Annotated[
        Path, typer.Option(help="Folder for journals and records; it must outlive the container.")
    ] = Path("/var/lib/slicepilot"),
    highest_mode: Annotated[
        Literal["shadow", "canary", "live"],
        typer.Option(help="Highest mode of a SliceSet on this node; higher modes run in shadow."),
    ] = "shadow",
    most_loops: Annotated[int, typer.Option(min=1, max=64, help="Maximum number of loops on this node.")] = 8,
    most_loops_in_namespace: Annotated[
        int, typer.Option(min=1, max=64, help="Maximum number of loops for the SliceSets of one namespace.")
    ] = 4,
    allow_exceed_limit: Annotated[
        bool, typer.Option("--allow-exceed-limit", help="Allow SliceSets to set CPU limits above those of their pods.")
    ] = False,
    allow_follow: Annotated[
        bool,
        typer.Option(
            "--allow-follow", help="Allow resizing and annotating pods where a SliceSet asks for it (follow)."
        ),
    ] = False,
    records_mb: Annotated[
        float, typer.Option(min=0, max=1_000_000, help="Disk space for the decision records of one loop; 0 keeps none.")
    ] = 64.0,
    bundle_volumes: Annotated[
        Path | None, typer.Option(help="Folder with the mounted volumes of policy bundles, as NAMESPACE/NAME.")
    ] = None,
    bundle_trust: Annotated[
        Path | None, typer.Option(help="Public key (PEM) that must have signed the bundles.")
    ] = None,
    metrics: Annotated[str, typer.Option(help="Address and port of the agent's Prometheus metrics, or off.")] = "off",
) -> None:
    """Run the loops of this node for the SliceSets that have pods here, and report to the API server.

    Needs root. Each SliceSet's loop is a separate process, which ends with the agent and restores its knobs. If
    another agent acts for the node, this agent waits. Logs are JSON lines on standard error. No knob is moved unless
    --highest-mode allows it.

    Example: [bold]slicepilot k8s agent --node edge-1 --kubeconfig agent.yaml --highest-mode live[/bold]
    """
    from slicepilot.agents.learned.signature import load_public_key
    from slicepilot.cluster.agent.agent import Agent, AgentConfig
    from slicepilot.cluster.agent.container import prepare
    from slicepilot.cluster.client.connection import Api
    from slicepilot.cluster.plan.allowance import Allowance
    from slicepilot.configs import ConfigError
    from slicepilot.controller.publisher.listeners import HttpAddress
    from slicepilot.controller.system.clocks import check_clocks
    from slicepilot.controller.system.signals import StopRequest

    check_clocks()
    try:
        address = HttpAddress.parse(metrics)
    except ConfigError:
        example = "10.0.0.1:9464"
        raise ConfigError(f"--metrics {metrics!r}: expected off, or an address and port such as {example}") from None
    run_root, state_root = run_root.absolute(), state_root.absolute()
    prepare(state_root)
    allowance = Allowance(
        highest_mode, most_loops, most_loops_in_namespace, allow_exceed_limit, allow_follow, records_mb
    )
    trust = None if bundle_trust is None else bundle_trust.absolute()
    if trust is not None:
        load_public_key(trust)
    config = AgentConfig(node, namespace, run_root, state_root, allowance, bundle_volumes, trust, address)
    with StopRequest() as stop:
        Agent(Api(kubeconfig), config, stop).run()
