"""HTB as our root qdisc: its classes, their rates, the queue behind each.

Messages: linux/pkt_sched.h, tc-htb(8).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from .qdisc import HANDLE_MAJOR, QDISC, RootQdisc
from .rtnetlink import NLM_F_DUMP, RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, TCMSG, attribute, attributes

RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
TC_H_MAJ = 0xFFFF0000
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
HTB_GLOB = struct.Struct("=IIIII")  # tc_htb_glob: version, rate2quantum, defcls, debug, direct_pkts
# tc_htb_opt: rate and ceil (tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate), buffer, cbuffer,
# quantum, level, prio.
HTB_OPT = struct.Struct("=BBHhHIBBHhHIIIIII")
HTB_VERSION, LINKLAYER_ETHERNET = 3, 1
NS_PER_TICK = 64  # include/net/pkt_sched.h, PSCHED_SHIFT
UNPACED_BYTES_PER_S = 125_000_000_000  # 1 Tbit/s
MIN_BYTES_PER_S = 125  # 1 kbit/s
BYTES_PER_S_PER_MBPS = 125_000.0
RATES_AT = (-20, -8)
"""Where rate and ceiling stand in a `class_message`, from its end: 64 bits each."""


def put(qdisc: RootQdisc, default: int = 0) -> None:
    """Install HTB. ``default`` is the class of packets that no filter classifies; 0: unpaced. Raises as
    `RootQdisc.put`."""
    qdisc.put("htb", attribute(TCA_HTB_INIT, HTB_GLOB.pack(HTB_VERSION, 10, default, 0, 0)))


def class_message(
    qdisc: RootQdisc,
    number: int,
    rates: tuple[int, int],
    burst_ms: float,
    quantum_bytes: int,
    *,
    parent: int = 0,
    priority: int = 0,
    flags: int = 0,
) -> bytearray:
    """The message that changes a class, or makes it by its flags.

    Args:
        qdisc: the HTB.
        number: of the class.
        rates: what it is guaranteed and its ceiling, in bytes per second.
        burst_ms: depth of its token buckets, in time at its rates.
        quantum_bytes: what it sends in a row when it takes turns with others.
        parent: number of the class above it; 0: none.
        priority: 0 to 7, the lowest borrows first.
        flags: of netlink.
    """
    # With 64-bit rates the 32-bit rates only have to be positive (psched_ratecfg_precompute takes the larger): 1
    # byte/s, so that no other field has to be patched.
    spec = (0, LINKLAYER_ETHERNET, 0, 0, 0, 1)
    ticks = round(burst_ms * 1e6 / NS_PER_TICK)
    options = attribute(TCA_HTB_PARMS, HTB_OPT.pack(*spec, *spec, ticks, ticks, quantum_bytes, 0, priority))
    for kind, rate in zip((TCA_HTB_RATE64, TCA_HTB_CEIL64), rates, strict=True):
        options += attribute(kind, struct.pack("=Q", rate))
    payload = attribute(TCA_KIND, b"htb\0") + attribute(TCA_OPTIONS, options)
    return qdisc.message(RTM_NEWTCLASS, flags, QDISC | number, QDISC | parent, payload)


def set_queue(qdisc: RootQdisc, number: int, packets: int, flags: int = 0) -> None:
    """Set how many packets may wait behind a class, or make its queue by the flags; raises ActuatorError."""
    fifo = attribute(TCA_KIND, b"pfifo\0") + attribute(TCA_OPTIONS, struct.pack("=I", packets))
    handle = (HANDLE_MAJOR + number) << 16
    qdisc.send(RTM_NEWQDISC, flags, handle, QDISC | number, fifo, f"queue of class {number}")


def classes(qdisc: RootQdisc) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Number and attributes of each of our classes; raises ActuatorError."""
    message = qdisc.message(RTM_GETTCLASS, NLM_F_DUMP, 0, 0)
    for _, payload in qdisc.route.dump(message, f"{qdisc.device}: list classes"):
        handle = TCMSG.unpack_from(payload)[2]
        if handle & TC_H_MAJ == QDISC:
            yield handle & ~TC_H_MAJ, attributes(payload[TCMSG.size :])


def rate_of(qdisc: RootQdisc, number: int) -> int | None:
    """Bytes per second of a class in the kernel; None where it is gone; raises ActuatorError."""
    options = attributes(dict(classes(qdisc)).get(number, {}).get(TCA_OPTIONS, b""))
    parms = options.get(TCA_HTB_PARMS, b"")
    if len(parms) < HTB_OPT.size:
        return None
    rate = int.from_bytes(options[TCA_HTB_RATE64], "little") if TCA_HTB_RATE64 in options else 0
    return rate or int(HTB_OPT.unpack_from(parms)[5])


def bytes_per_s(rate_mbps: float) -> int:
    """The rate in bytes per second; `UNPACED_BYTES_PER_S` for inf and 0."""
    if rate_mbps <= 0 or rate_mbps == math.inf:
        return UNPACED_BYTES_PER_S
    return min(max(round(rate_mbps * BYTES_PER_S_PER_MBPS), MIN_BYTES_PER_S), UNPACED_BYTES_PER_S)


def mbps(rate_bytes_per_s: int) -> float:
    """The inverse; inf for what paces nothing."""
    return math.inf if rate_bytes_per_s >= UNPACED_BYTES_PER_S else rate_bytes_per_s / BYTES_PER_S_PER_MBPS
