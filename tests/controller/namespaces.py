"""A network namespace for a test, which nothing can leave behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from slicepilot.controller.system.net.namespaces import inside

# It lives as long as the process that holds it, whatever happens to the test.
HOLDER = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
    sys.exit(os.strerror(ctypes.get_errno()))
print("ready", flush=True)
sys.stdin.read()
"""


class Namespace:
    """A network namespace of its own."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"
        self.pid = self.holder.pid
        self.path = Path(f"/proc/{self.pid}/ns/net")
        self.sh("ip link set lo up; sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")

    def sh(self, commands: str) -> str:
        """Run shell commands inside. Not through ``ip netns exec``, which mounts another /sys."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", "sh", "-ec", commands], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_DGRAM) -> socket.socket:
        return inside(self.path, lambda: socket.socket(family, kind))

    def close(self) -> None:
        self.holder.communicate()
