"""``slicepilot dataset import-prometheus``: what a server has stored of a node, as episodes."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from slicepilot.cli.dataset.paths import check_episodes_out, with_provenance, write_any_episodes, writing_to
from slicepilot.cli.schemas.datasets import ImportedRange
from slicepilot.cli.shared.output import console, print_json, progress_bar
from slicepilot.configs import ConfigError


def import_prometheus(
    file: Annotated[str, typer.Argument(help="Node configuration with telemetry.prometheus: a name or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Output: NAME.parquet, or a new folder NAME-vN for a Minari dataset.")],
    start: Annotated[
        str, typer.Option(help="Start of the range, for instance 2026-11-25T08:00:00Z; UTC without a zone.")
    ],
    end: Annotated[str | None, typer.Option(help="End of the range, same format (default: now).")] = None,
    period_s: Annotated[
        int, typer.Option(min=1, max=30, help="Control period, which is one step of the episodes.")
    ] = 30,
    episode_s: Annotated[int, typer.Option(min=1, help="Length of an episode.")] = 3600,
    reward: Annotated[str, typer.Option(help="Reward weights: a shipped name or a YAML file.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Import a range of time of a node from a Prometheus server, as episodes for offline training.

    Missing, stale or implausible values are marked, and left out of rewards. It needs no UPF and runs wherever the
    server can be reached.

    Example: slicepilot dataset import-prometheus node.yaml --start 2026-11-24T00:00:00Z --out log.parquet
    """
    from slicepilot.data.episodes.missing import missing_of
    from slicepilot.env.reward import RewardWeights
    from slicepilot.node.config.spec import NodeSpec
    from slicepilot.training.recording.prometheus import Range, to_episodes

    spec = NodeSpec.from_yaml(file)
    server = spec.prometheus
    if server is None:
        raise ConfigError(f"{file}: no telemetry; expected telemetry: {{prometheus: {{url: ...}}}}")
    check_episodes_out(out)
    first_s, last_s = _time("start", start), int(time.time()) if end is None else _time("end", end)
    wanted = Range(first_s, last_s, period_s, max(1, episode_s // period_s))
    weights = RewardWeights.from_yaml(reward)
    with progress_bar() as progress:
        task = progress.add_task(f"asking {server.url}", total=1.0)
        node = {"uplink_mbps": spec.uplink_mbps, "logical_cpus": spec.cpus}
        made = to_episodes(
            server, spec.promised, node, wanted, weights, lambda share: progress.update(task, completed=share)
        )
    episodes = with_provenance(made.episodes)
    with writing_to(out.parent):
        write_any_episodes(episodes, out)
    document = {
        "out": str(out),
        "episodes": len(episodes),
        "steps": episodes.num_steps,
        "left_out_steps": made.left_out,
        "period_s": float(period_s),
        "missing": missing_of(episodes),
        "why": list(made.why),
        "partial_answers": made.partial,
        "remarks": list(made.remarks),
    }
    if as_json:
        print_json(document, ImportedRange)
    else:
        _print(document)


def _time(option: str, text: str) -> int:
    try:
        result = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} = {text!r}: expected a time such as 2026-11-25T08:00:00Z") from None
    return int((result if result.tzinfo else result.replace(tzinfo=datetime.UTC)).timestamp())


def _print(document: dict[str, Any]) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say(
        f"{document['out']}: {document['episodes']} episodes, {document['steps']:,} steps of {document['period_s']:g} s"
    )
    if document["left_out_steps"]:
        say(f"  {document['left_out_steps']:,} steps left out, of episodes without a step that has a reward")
    for item in document["missing"]:
        share = 100 * item["unmeasured"] / max(item["readings"], 1)
        say(f"  {share:.1f}% of the readings are missing; {item['unscored_steps']:,} steps have no reward")
    if document["partial_answers"]:
        say(f"  {document['partial_answers']} answers were partial: nothing of their range is taken for measured")
    for text in (*document["why"], *document["remarks"]):
        say(f"  {text}")
