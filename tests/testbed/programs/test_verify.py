"""What ``smf --verify`` and ``slicepilot testbed verify`` find at the project's UPF, and at one that only says yes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.testbed.lifecycle.processes import binary
from slicepilot.testbed.lifecycle.removal import take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing

from .scapy_smf import BOTH, GTPU_PORT, IPV4, IPV6, PFCP_PORT, Addresses, Network

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}")

try:
    SMF = str(binary("smf"))
except ConfigError as error:
    pytest.skip(str(error), allow_module_level=True)

RULES = ("gate", "mbr", "urr")
NAME = "sptv"


def verify(network: Network, outer: Addresses, inner: Addresses, *upf_flags: str) -> subprocess.CompletedProcess[str]:
    """What the SMF says of a UPF that is started with these flags."""

    def host(address: str) -> str:
        return address if outer is IPV4 else f"[{address}]"

    ends = ("--n4", f"{host(outer.upf)}:{PFCP_PORT}", "--n3", f"{host(outer.upf)}:{GTPU_PORT}")
    pools = ("--ue-pool", IPV4.pool, "--ue-pool", IPV6.pool)
    upf = network.start_upf(*ends, *pools, "--heartbeat", "0", *upf_flags)
    try:
        assert upf.stdout is not None
        assert json.loads(upf.stdout.readline())["event"] == "ready"
        session = f"name=a,upf={host(outer.upf)},ue={inner.terminal},n3={outer.upf},gnb={outer.ran},gnb-teid=7"
        command = [
            *("nsenter", f"--net=/run/netns/{network.names['ran']}", SMF, f"--n4={host(outer.ran)}:{PFCP_PORT}"),
            *(f"--upf={host(outer.upf)}", f"--session={session}", "--json"),
            f"--verify=n6={inner.server},n6-netns=/run/netns/{network.names['upf']}",
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        upf.kill()
        upf.communicate()


def results(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], str]:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (answer,) = [line for line in lines if line.get("op") == "verify"]
    assert answer["ok"], done
    return {(check["rule"], check["direction"]): check["result"] for check in answer["checks"]}


@BOTH
@pytest.mark.parametrize("inner", [IPV4, IPV6], ids=["inner-ipv4", "inner-ipv6"])
def test_the_upf_enforces_what_it_accepts(network: Network, outer: Addresses, inner: Addresses) -> None:
    done = verify(network, outer, inner)
    assert results(done) == {(rule, direction): "enforced" for rule in RULES for direction in ("ul", "dl")}
    assert done.returncode == 0


@pytest.mark.parametrize("ignored", [*((rule,) for rule in RULES), ("gate", "mbr"), RULES], ids="+".join)
def test_a_upf_that_only_says_yes_is_found_out(network: Network, ignored: tuple[str, ...]) -> None:
    done = verify(network, IPV4, IPV4, "--ignore", ",".join(ignored))
    expected = {rule: "accepted_without_effect" if rule in ignored else "enforced" for rule in RULES}
    assert results(done) == {(rule, direction): expected[rule] for rule in RULES for direction in ("ul", "dl")}
    assert done.returncode == 1
    assert done.stderr == f"smf: {2 * len(ignored)} checks did not find what was asked for enforced\n"


def command(*arguments: str) -> tuple[int, Any]:
    whole = [sys.executable, "-m", "slicepilot.cli", "testbed", "verify", "--name", NAME, "--json", *arguments]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def test_the_command_speaks_json_and_says_what_is_not_enforced() -> None:
    Testbed.up(TestbedSpec(name=NAME, burn_us=100, ues=1), owned=True)
    try:
        code, (slice2,) = command("--slice", "slice2")
        assert code == 0
        assert (slice2["slice"], slice2["session"]) == ("slice2", "slice2/0")
        assert {rule["result"] for rule in slice2["rules"]} == {"enforced"}
        (limited, _) = [rule for rule in slice2["rules"] if rule["rule"] == "mbr"]
        assert limited["rate"]["arrived_mbps"] <= limited["rate"]["most_mbps"] < limited["rate"]["offered_mbps"]
        code, said = command("--slice", "slice9")
        assert code == 2
        assert said.startswith("slicepilot: error: --slice 'slice9'")
    finally:
        take_down(NAME)
    Testbed.up(TestbedSpec(name=NAME, burn_us=0, ues=1, ignored=("gate", "mbr")), owned=True)
    try:
        code, (slice1,) = command("--slice", "slice1")
        assert code == 1
        found = {(rule["rule"], rule["result"]) for rule in slice1["rules"]}
        assert found == {
            ("gate", "accepted_without_effect"),
            ("mbr", "accepted_without_effect"),
            ("urr", "enforced"),
        }
    finally:
        take_down(NAME)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("n6=here", "n6"),
        ("n6-netns=/run/netns/x", "n6: missing"),
        ("n6=10.0.0.1,n6-netns=x", "n6_netns"),
        ("n7=10.0.0.1", "n7"),
    ],
)
def test_bad_places_are_one_line_and_exit_code_2(place: str, says: str) -> None:
    flags = ["--upf=127.0.0.1", "--session=upf=127.0.0.1,ue=10.0.0.1", f"--verify={place}"]
    done = subprocess.run([SMF, *flags], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_verifying_without_a_session_is_refused() -> None:
    command = [SMF, "--upf=127.0.0.1", "--verify=n6=10.0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 2
    assert "--verify without --session" in done.stderr
