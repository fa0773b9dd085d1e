"""``python -m slicepilot.cli.reference`` prints the site's page of commands: options, exit codes and JSON of each."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter

from slicepilot.configs.backends import Check
from slicepilot.controller.contracts.answers import OrderAnswer, Status

from .app import CommandByName
from .bundle.import_policy import ImportedBundle
from .operation.promote import Verdict
from .registry import commands
from .schemas import bench, cluster, datasets, episodes, evaluation, explaining, machine, operation, training

WIDTH = 120
COLUMN = 34  # where descriptions begin
MARKUP = re.compile(r"\[/?(bold|dim|green|red|yellow)\]")

# By command: when it prints a document of a shape, and the shape.
PRINTED: dict[str, dict[str, Any]] = {
    "doctor": {"": list[Check]},
    "simulate": {"with `--study`": list[evaluation.StudyExperiment], "otherwise": evaluation.Played},
    "train": {
        "training in the simulator": training.Trained,
        "with `--offline`": training.TrainedOffline,
        "with `--finetune`": training.FineTuned,
    },
    "tune": {"": training.Tuned},
    "evaluate": {"": evaluation.Evaluations},
    "reproduce": {"": evaluation.Reproduced},
    "compare": {"": evaluation.Compared},
    "run": {"": operation.RunReport},
    "top": {"": Status},
    "explain": {"one tick": explaining.ExplainedTick, "with `--window`": list[explaining.ExplainedWindow]},
    "promote": {"": Verdict},
    "bundle import": {"": ImportedBundle},
    "bundle export": {"": operation.ExportedBundle},
    "restore": {"": list[operation.Restored]},
    "probe": {"": explaining.Probed},
    "control status": {"": Status},
    **{f"control {order}": {"": OrderAnswer} for order in ("mode", "pause", "resume", "safe", "reload")},
    "node discover": {"": list[machine.DiscoveredUpf]},
    "node check": {"": list[machine.CheckedSlice]},
    "node identify": {"": machine.IdentifiedNode},
    "k8s status": {"": cluster.Overview},
    "testbed up": {"": machine.TestbedUp},
    "testbed status": {"": list[machine.TestbedStatus]},
    "testbed identify": {"": machine.Identified},
    "dataset list": {"": list[datasets.Release]},
    "dataset fetch": {"": datasets.Fetched},
    "dataset import": {"": datasets.Imported},
    "dataset map": {"": datasets.ProposedMap},
    "dataset import-prometheus": {"": datasets.ImportedRange},
    "dataset validate": {"": datasets.Validated},
    "dataset describe": {"": datasets.Described},
    "dataset convert": {"": datasets.Converted},
    "dataset record": {"": episodes.Recorded},
    "dataset analyse": {"": episodes.Analysed},
    "dataset estimate": {"": episodes.Estimates},
    "list": {"": list[machine.Named]},
    "bench sim": {"": bench.SimulatorSpeed},
    "bench loop": {"": bench.LoopBench},
    "bench probe": {"": bench.ProbeBench},
    "bench soak": {"": bench.SoakBench},
}
NOTES = {
    "doctor": "Exit code 1: something is missing that simulation or training needs.",
    "top": "The publisher serves the same document as `/status.json`.",
    "restore": "Exit code 1: a knob could not be restored.",
    "control status": "`slices[].history` is left out. The control socket answers the same.",
    "node check": "Exit code 1: a slice could not be measured.",
    "k8s status": "Exit code 1: there is no agent, or an agent is not ready.",
    "dataset import": "Exit code 2: a file is unusable; the others are imported.",
    "dataset analyse": "[Statistics](statistics.md) defines each figure.",
    "dataset estimate": "[Offline evaluation](evaluation-offline.md) says how far to trust each estimator.",
    "bench soak": "Exit code 1: a failure or a crash.",
}

HEAD = """\
# Command line

`python -m slicepilot.cli.reference` generates this page from the commands and from the shapes of their JSON.

Results go to standard output, progress to standard error. With `--json`, standard output is one JSON document: strict
(no NaN or infinity), with `null` for unknown values and for absent limits. Fields marked with `?` may be
absent. Examples of types: `number|null`, `Fault[]` (a list), `{name: integer}` (an object with any names).

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure: standard error or the document says what failed |
| 2 | invalid input: one line on standard error names the field, its value and what is expected |
| 130 | interrupted by Ctrl-C, after cleaning up |
| 143 | interrupted by SIGTERM, after cleaning up |

Fields with the same name have the same meaning everywhere; the list of a document explains the others.

```
"""
# Fields of many documents. Endings of names are units.
COMMON = {
    "*_mbps, *_mcpu, *_us, *_ratio": "Mbit/s, thousandths of a CPU, microseconds, shares from 0 to 1",
    "*_ns": "nanoseconds; of a point in time: since 1970",
    "agent, bundle, digest": "name of the agent; folder of its policy bundle, or SHA-256 of its contents",
    "slice, scenario, seed, run_id": "names and identifiers; the run_id of training is MLflow's, null without tracking",
    "offered_mbps, carried_mbps": "mean rate that reached N3, and that left at N6",
    "delay_p50_us, delay_p99_us": "median and 99th percentile of the delay from N3 to N6",
    "delay_worst_us": "highest 99th percentile of a tick",
    "loss_ratio": "share of the offered packets that were not carried",
    "cpu_use_mcpu": "CPU time that the slice's cgroup used",
    "throttled_ratio": "share of quota periods in which the CPU limit ran out",
    "runqueue_delay_us": "wait for a CPU",
    "sla_violation_s": "time in which the promise was broken",
    "cpu_limit, nice, egress": "the knobs: CPU limit, CPU priority (-20 is first), egress rate",
    "mode, level": "mode of the controller; how far the guard restricts the policy",
    "ticks, late_ticks, missed_ticks": "ticks that ran, exceeded their budget, and could not run in time",
    "wakeup, observe, infer, guard, apply": "stages of a tick; wakeup: how late it began",
    "ready, total, record": "observe to guard; observe to apply; recording the tick",
    "scheduling": "scheduling class of the loop's thread, and why it has no better class",
    "episodes, steps, period_s": "number of episodes, of their control periods, length of a control period",
    "kind, rows, faults, citation": "kind and rows of a file, its faults, how to cite its study",
    "path, files, not_read, unusable": "files read or written; of unknown kind; that cannot be used, and why",
    "missing": "measurements that are missing, by behaviour",
    "median, mean, std, p50 to p999": "median, mean, standard deviation, percentiles",
    "ci95, low, high": "ends of the 95% confidence interval",
    "failed, notes, why": "what failed, what else to know, the reason",
}


def page() -> str:
    """The page as Markdown."""
    described: set[str] = set()
    sections = ["\n".join(_section(name, command, described)) for name, command in load_commands()]
    common = [_line(f"  {name}", text) for name, text in COMMON.items()]
    return "\n".join([HEAD + "\n".join(common), "```", "", *sections])


def load_commands() -> Iterator[tuple[str, Any]]:
    """Every command by its name, with its options."""
    for name, entry in commands().items():
        yield name, CommandByName(name.rpartition(" ")[2], entry).load()


def _section(name: str, command: Any, described: set[str]) -> Iterator[str]:
    yield from (f"## slicepilot {name}", "")
    help_text = MARKUP.sub("", inspect.cleandoc(command.help or "")).partition("\n\n")[0]
    yield from (*textwrap.wrap(f"{' '.join(help_text.split())} {NOTES.get(name, '')}", WIDTH), "")
    yield from _parameters(command, described)
    for when, shape in PRINTED.get(name, {}).items():
        yield from (f"JSON{f', {when}' if when else ''}: {_document(shape, described)}", "")


def _parameters(command: Any, described: set[str]) -> Iterator[str]:
    """Arguments and options; those that a command before has with the same text only by name."""
    params = [(_parameter(param), getattr(param, "help", None) or "") for param in command.params]
    params = [(lead, text) for lead, text in params if not lead.startswith("--json")]
    new = [(lead, text) for lead, text in params if lead + text not in described]
    described.update(lead + text for lead, text in new)
    if new:
        yield from ("```", *(_line(f"  {lead}", text) for lead, text in new), "```", "")
    if known := [f"`{lead}`" for lead, text in params if (lead, text) not in new]:
        yield from (*textwrap.wrap(f"As above: {', '.join(known)}.", WIDTH, break_on_hyphens=False), "")


def _parameter(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"{param.name.upper()}{'...' if param.nargs == -1 else ''}"
    names = ", ".join([*sorted(param.opts, key=len, reverse=True), *param.secondary_opts])
    value = "" if param.is_flag else f"={(param.metavar or param.name).upper()}"
    return names + value + (" ..." if param.multiple else "")


def _document(shape: Any, described: set[str]) -> str:
    """The type of a document, and below it the fields of each shape that no section before has described."""
    schema = TypeAdapter(shape).json_schema()
    shapes = dict(schema.pop("$defs", {}))
    if "properties" in schema:
        shapes = {schema["title"]: schema} | shapes
    new = [name for name in _in_order(schema, shapes) if name not in described]
    described.update(new)
    lines = [f"`{schema['title'] if 'properties' in schema else _type(schema)}`"]
    if new:
        lines += ["", "```", *(line for name in new for line in _fields(name, shapes[name])), "```"]
    return "\n".join(lines)


def _in_order(schema: dict[str, Any], shapes: dict[str, Any]) -> list[str]:
    """Names of shapes, each after the first that refers to it."""
    order = [schema["title"]] if "properties" in schema else []
    waiting = [schema]
    while waiting:
        for reference in re.findall(r"'#/\$defs/(\w+)'", str(waiting.pop(0))):
            if reference not in order:
                order.append(reference)
                waiting.append(shapes[reference])
    return order


def _fields(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from textwrap.wrap(f"{name}: {' '.join(schema['description'].split())}", WIDTH, subsequent_indent="    ")
    required = {
        *schema.get("required", ()),
        *(name for name, kind in schema["properties"].items() if "default" in kind),
    }
    fields = [
        (f"{field}{'' if field in required else '?'}", _type(kind), " ".join(kind.get("description", "").split()))
        for field, kind in schema["properties"].items()
    ]
    # Adjacent fields of the same type without a description share a line.
    for (kind, text), group in groupby(fields, key=lambda field: (field[1], field[2])):
        names = [name for name, _, _ in group]
        yield from (_line(f"  {part}: {kind}", text) for part in ([", ".join(names)] if not text else names))


def _type(kind: dict[str, Any]) -> str:
    """A JSON schema's type as TypeScript would write it."""
    if "$ref" in kind:
        return kind["$ref"].rpartition("/")[2]
    if "anyOf" in kind:
        return "|".join(map(_type, kind["anyOf"]))
    if "enum" in kind or "const" in kind:
        return "|".join(map(json.dumps, kind.get("enum", [kind.get("const")])))
    if "prefixItems" in kind:
        return f"[{', '.join(map(_type, kind['prefixItems']))}]"
    if kind.get("type") == "array":
        item = _type(kind["items"])
        return f"({item})[]" if "|" in item else f"{item}[]"
    if kind.get("type") == "object":
        keys = kind.get("propertyNames", {})
        names = keys.get("enum", [keys.get("const", "name")])
        value = kind.get("additionalProperties")
        return f"{{{'|'.join(names)}: {_type(value) if isinstance(value, dict) else 'any'}}}"
    return str(kind.get("type", "any"))


def _line(lead: str, text: str) -> str:
    """A description beside its lead, or below if the lead is too long."""
    first = f"{lead}  " if len(lead) >= COLUMN else lead.ljust(COLUMN)
    return "\n".join(
        textwrap.wrap(first + text, WIDTH, subsequent_indent=" " * COLUMN, break_on_hyphens=False)
    ).rstrip()


if __name__ == "__main__":
    sys.stdout.write(page())
