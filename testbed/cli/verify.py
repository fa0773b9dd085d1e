"""``slicepilot testbed verify``: do the UPFs what they have accepted?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from slicepilot.cli.schemas import verified as schema
from slicepilot.cli.shared.output import console, figures_table, print_json
from slicepilot.configs import ConfigError, did_you_mean

from .testbed import NameOption

ENFORCED = "enforced"


def verify(
    name: NameOption = "sp",
    slice_name: Annotated[str | None, typer.Option("--slice", help="Slice to verify (default: all).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify with packets whether UPFs enforce gates, maximum bit rates and usage reports.

    Takes two seconds per slice, in the session of its first UE, without other load. Exit code 1: a rule is not
    enforced.

    Example: [bold]slicepilot testbed verify --json[/bold]
    """
    from slicepilot.testbed.lifecycle.sessions import session_name
    from slicepilot.testbed.lifecycle.testbed import Testbed

    testbed = Testbed.attach(name)
    names = testbed.slices.names
    if slice_name is not None and slice_name not in names:
        raise ConfigError(f"--slice {slice_name!r}: not in testbed {name!r}; {did_you_mean(slice_name, names)}")
    plans = [plan for plan in testbed.layout.slices if slice_name in {None, plan.name}]
    smf, found = testbed.smf(), list[dict[str, Any]]()
    try:
        for plan in plans:
            checks = smf.verify(plan, testbed.layout.data_network)
            rules = [{key: check.get(key) for key in schema.VerifiedRule.__annotations__} for check in checks]
            found.append({"slice": plan.name, "session": session_name(plan, 0), "rules": rules})
    finally:
        smf.close()
    if as_json:
        print_json(found, list[schema.VerifiedSlice])
    else:
        _print(name, found)
    if any(rule["result"] != ENFORCED for each in found for rule in each["rules"]):
        raise typer.Exit(1)


def _print(name: str, found: list[dict[str, Any]]) -> None:
    table = figures_table(f"testbed {name}: what packets say", ("slice", "rule", "direction", "result"))
    for each in found:
        for rule in each["rules"]:
            result = rule["result"].replace("_", " ")
            table.add_row(each["slice"], rule["rule"], rule["direction"], result)
    console.print(table)
    for each in found:
        for rule in each["rules"]:
            why = rule["detail"] or (f"cause {rule['cause']}" if rule["cause"] else None)
            if why:
                console.print(f"{each['slice']}, {rule['rule']} {rule['direction']}: {why}", highlight=False)
