"""A node with Cilium's map, in namespaces of the test's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from .machine import DIRECTION, ENDPOINT, ORIGINAL, Agent, Pod, map_of, own_namespaces, typed_map


@pytest.fixture(scope="session", name="objects")
def _objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled programs are."""
    return tmp_path_factory.mktemp("edt")


@pytest.fixture(name="agent")
def _agent(tmp_path: Path) -> Iterator[Agent]:
    with own_namespaces():
        yield Agent(tmp_path)


@pytest.fixture(name="pod")
def _pod(agent: Agent) -> Iterator[Pod]:
    del agent  # its namespaces first
    pod = Pod()
    yield pod
    pod.close()


@pytest.fixture
def paced(agent: Agent, pod: Pod, objects: Path) -> Iterator[Agent]:
    """The pod is endpoint `ENDPOINT`, and has 50 Mbit/s."""
    with contextlib.closing(typed_map(DIRECTION, objects)) as made:
        agent.pin(map_of(made).fd)
        agent.endpoint(ENDPOINT, pod.link, pod.ifindex)
        agent.write(ENDPOINT, ORIGINAL)
        yield agent
