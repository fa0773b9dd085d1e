"""``slicepilot k8s agent``: the agent of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def agent(
    node: Annotated[str, typer.Option(help="Name of this node in the cluster.")],
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Where the API server is, and who we are; else this pod's service account.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where the agents' Leases are.")] = "slicepilot-system",
    run_root: Annotated[Path, typer.Option(help="Folder for sockets and shared memory.")] = Path("/run/slicepilot"),
    state_root: Annotated[
        Path, typer.Option(help="Folder for journals and records; outlives this process, and its container.")
    ] = Path("/var/lib/slicepilot"),
    highest_mode: Annotated[
        Literal["shadow", "canary", "live"],
        typer.Option(help="The most that a SliceSet may do here; one that asks for more runs in shadow."),
    ] = "shadow",
    most_loops: Annotated[int, typer.Option(min=1, max=64, help="At most so many loops on this node.")] = 8,
    most_loops_in_namespace: Annotated[
        int, typer.Option(min=1, max=64, help="At most so many for the SliceSets of one namespace.")
    ] = 4,
    allow_exceed_limit: Annotated[
        bool, typer.Option("--allow-exceed-limit", help="SliceSets may set CPU limits above those of their pods.")
    ] = False,
    allow_follow: Annotated[
        bool,
        typer.Option("--allow-follow", help="Pods may be resized and annotated where SliceSets say so (follow)."),
    ] = False,
    records_mb: Annotated[
        float, typer.Option(min=0, max=1_000_000, help="Disk space for the decision records of one loop; 0: none.")
    ] = 64.0,
    bundle_registry: Annotated[
        list[str] | None,
        typer.Option(
            help="HOST[:PORT] of a registry that policy bundles may be had from, and that others may redirect to; may "
            "be given several times. http://HOST:PORT: without TLS. None: no registry is asked."
        ),
    ] = None,
    bundle_registry_ca: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) that registries have theirs from; else this machine's.")
    ] = None,
    bundle_registry_auth: Annotated[
        Path | None, typer.Option(help="Credentials for registries, as docker keeps them (config.json).")
    ] = None,
    bundle_trust: Annotated[
        Path | None, typer.Option(help="Public key (PEM) that bundles which are fetched have to be signed with.")
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="Address and port to serve Prometheus' metrics of the agent and its loops on, or off.")
    ] = "off",
) -> None:
    """Run a loop on this node for the SliceSets that have pods here, and tell the API server about it.

    Needs root. Each SliceSet's loop is a process of its own, which ends with the agent and gives its knobs back.
    While another agent acts for the node this one waits. Logs are lines of JSON on standard error.
    Nothing is moved unless --highest-mode says that it may be, whatever SliceSets ask for.
    Example: [bold]slicepilot k8s agent --node edge-1 --kubeconfig agent.yaml --highest-mode live[/bold]
    """
    from slicepilot.agents.learned.signature import load_public_key
    from slicepilot.cluster.agent.agent import Agent, AgentConfig
    from slicepilot.cluster.agent.container import prepare
    from slicepilot.cluster.client.connection import Api
    from slicepilot.cluster.fetch.image import Registries
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
        raise ConfigError(f"--metrics {metrics!r}: accepted: off, or an address and port, as {example}") from None
    run_root, state_root = run_root.absolute(), state_root.absolute()
    prepare(state_root)
    allowance = Allowance(
        highest_mode, most_loops, most_loops_in_namespace, allow_exceed_limit, allow_follow, records_mb
    )
    registries = Registries.of(bundle_registry or (), bundle_registry_ca, bundle_registry_auth)
    trust = None if bundle_trust is None else bundle_trust.absolute()
    if trust is not None:
        load_public_key(trust)
    config = AgentConfig(node, namespace, run_root, state_root, allowance, registries, trust, address)
    with StopRequest() as stop:
        Agent(Api(kubeconfig), config, stop).run()
