"""CPU time that a session costs whoever learns it: ``python -m tests.controller.telemetry.n4.cost``."""

from __future__ import annotations

import time

from slicepilot.controller.telemetry.n4.sessions import Datagram, Sessions

from .octets import CP, UP, cause, dnn, element, f_seid, message, node, rules, s_nssai

SESSIONS, TURNS = 1000, 5
OTHERS = b"".join(element(kind, element(108, bytes(4)) + element(49, b"\2") * 8) for kind in (3, 3, 6, 6, 7 + 9990))


def main() -> None:
    """Print the least of some turns, in microseconds for establishment and deletion with their answers."""
    best = min(_turn() for _ in range(TURNS))
    print(f"{1e6 * best / SESSIONS:.0f} us of CPU time a session, without the tables in the kernel")


def _turn() -> float:
    sessions = Sessions(lambda upf, session: True)
    said = []
    for number in range(SESSIONS):
        of_rules = rules(number + 1, "10.61.1.2") + OTHERS
        said += [
            (False, message(50, 2 * number, node(), f_seid(5), of_rules, dnn("a"), s_nssai(1, "000001"), seid=0)),
            (True, message(51, 2 * number, node(UP), cause(), f_seid(number, UP), seid=5)),
            (False, message(54, 2 * number + 1, seid=number)),
            (True, message(55, 2 * number + 1, cause(), seid=5)),
        ]
    started = time.process_time()
    for sent, octets in said:
        sessions.take(Datagram(0, sent, UP.packed, CP.packed, 8805, 8805, 1, octets))
        while sessions.next_change() is not None:
            pass
    return time.process_time() - started


if __name__ == "__main__":
    main()
