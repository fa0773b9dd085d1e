"""What the programs of the testbed do with flags that make no sense: one line that names the flag, and exit code 2."""

import subprocess

import pytest

from .built import built

BOTH = "--n4=127.0.0.1 --n3=127.0.0.1 "
SESSION = "--upf=127.0.0.1 --session=upf=127.0.0.1,ue=10.0.0.1,gnb=10.0.0.2,gnb-teid=1,"
TERMINAL = "--from=127.0.0.1 --to=127.0.0.2 --teid=1 --ue=10.60.0.2 "


@pytest.mark.parametrize(
    ("program", "flags", "named"),
    [
        ("upf", "", '--n4 ""'),
        ("upf", "--n4=127.0.0.1 --n3=0.0.0.0", "--n3 0.0.0.0"),
        ("upf", "--n4=localhost --n3=127.0.0.1", '--n4 "localhost"'),
        ("upf", BOTH + "--ue-pool=10.60.0.1", '--ue-pool "10.60.0.1"'),
        ("upf", BOTH + "--burn-ns=-1", "--burn-ns -1"),
        ("upf", BOTH + "--tun=a-name-that-is-too-long", "--tun"),
        ("upf", BOTH + "--node-id=upf", '--node-id "upf"'),
        ("upf", "--speed", "speed"),
        ("upf", "go", '"go"'),
        ("load", "", "flows"),
        ("load", "--flow=kind=tcp", "kind"),
        ("load", "--flow=kind=cbr,rate=-1", "rate_mbps"),
        ("load", "--flow=kind=video,speed=4", "speed"),
        (
            "load",
            "--flow=kind=trace,trace=/nonexistent,from=127.0.0.1,to=127.0.0.1,ue=10.0.0.1,dst=10.0.0.2:1",
            "trace: ",
        ),
        ("load", "--flow=kind=trace", "trace"),
        ("load", "--flow=kind=cbr,rate=1,trace=x.csv", "trace"),
        ("load", "--flow=kind=trace,trace=x.csv,scale=0.0000001", "scale"),
        ("load", "--flow=kind=trace,trace=x.csv,loop=often", "loop"),
        ("load", "--plan=- --start-on-stdin", "--plan"),
        ("load", "--plan=/nonexistent", "--plan"),
        ("load", "--cpu=1024", "--cpu"),
        ("smf", "", "--upf"),
        ("smf", "--n4=somewhere --upf=127.0.0.1", "--n4"),
        ("smf", "--upf=upf.example.org", "--upf"),
        ("smf", SESSION + "qfi=64", "qfi"),
        ("smf", SESSION + "sst=1,sd=12", "sd"),
        ("smf", SESSION.replace("upf=127.0.0.1,", "upf=127.0.0.2,") + "qfi=9", "127.0.0.2"),
        ("smf", "--script=/nonexistent", "--script"),
        ("ue", "", "--from"),
        ("ue", "--serve=anywhere", "--serve"),
        ("ue", TERMINAL + "--ue=ten", "--ue"),
        ("ue", TERMINAL + "--url=ftp://127.0.0.1/1", "--url"),
        ("ue", TERMINAL + "--url=http://127.0.0.1/1 --users=0", "--users"),
        ("ue", TERMINAL + "--url=http://127.0.0.1/1 --qfi=64", "--qfi"),
        ("ue", TERMINAL + "--url=http://127.0.0.1/1 --tun-mtu=10", "--tun-mtu"),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(program: str, flags: str, named: str) -> None:
    command = [built(program), *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
