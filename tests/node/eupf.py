"""eUPF, a user plane of somebody else's that forwards in XDP, on the network of ``foreign.sh``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pyroute2 import Ethtool

from slicepilot.controller.system.net.namespaces import inside

from .foreign import Foreign

BUILD = Path(__file__).with_name("eupf.sh")


def start_eupf(state: Path, xdp: str, prefix: str = "fe") -> Foreign:
    """One, built where that has not been done yet; ``xdp`` is native or generic."""
    built = subprocess.run([BUILD], capture_output=True, text=True, check=False, timeout=280)
    assert built.returncode == 0, built.stderr
    node = Foreign(state, count=1, prefix=prefix, KIND="eupf", PROGRAM=built.stdout.strip(), XDP=xdp)
    inside(f"{node.prefix}-dn", take_redirected)
    return node


def take_redirected() -> None:
    """N6's far end: a veth takes what XDP sends it only where it has NAPI (drivers/net/veth.c, veth_xdp_xmit)."""
    with Ethtool() as tool:
        features = tool.get_features("n6-1")
        features.features["rx-gro"].enable = True
        tool.set_features("n6-1", features)
