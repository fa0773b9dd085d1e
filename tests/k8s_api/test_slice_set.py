"""A loop is configured as a SliceSet says, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.cluster.resources.labels import selector_of
from slicepilot.cluster.resources.names import snake
from slicepilot.cluster.resources.slice_set import Follow, declared
from slicepilot.cluster.resources.wanted import Wanted
from slicepilot.configs import ConfigError
from slicepilot.node.config.spec import NodeSlice, NodeSpec

from .documents import FULL, set_document, slice_document

CRDS = Path(__file__).parents[2] / "deploy" / "helm" / "slicepilot" / "crds"


def test_every_field_arrives_where_a_loop_reads_it(tmp_path: Path) -> None:
    result = declared(set_document(slices=[FULL], uplinkMbps=800, periodMs=5))
    path = tmp_path / "node.yaml"
    document = result.node_document({"a": {"upf": {"pod": {"name": "upf-a-0", "namespace": "core"}}}})
    path.write_text(yaml.safe_dump(document))
    spec = NodeSpec.from_yaml(str(path))
    [item] = spec.slices
    assert (spec.name, spec.uplink_mbps, result.period_ms) == ("core.video", 800, 5)
    assert (item.s_nssai.sst, item.s_nssai.sd, item.dnn, item.weight, item.upf_threads) == (1, "000001", "video", 4, 2)
    assert (item.sla.committed_mbps, item.sla.delay_bound_ms, item.sla.least_ratio) == (20, 50, 0.5)
    assert (item.bounds.cpu_limit_mcpu, item.bounds.nice, item.bounds.egress_mbps) == ((100, 900), (-5, 5), (1, 90))
    assert (item.leave, item.devices.n3, item.devices.n6) == (("egress_mbps",), "net1", "net2")
    assert item.traffic is not None
    assert (item.traffic.ue_pools, item.traffic.qfis, item.traffic.s_nssai) == (("10.45.0.0/16",), (9,), True)
    assert item.may_exceed_limit
    assert item.ceiling_mcpu == 900
    assert item.egress_by == "cilium"
    assert result.slices[0].follow == Follow((100.0, 900.0), (1.0, 90.0), "guaranteed", True, 5.0)
    assert result.slices[0].container == "upf"
    assert result.slices[0].shares


def test_ranges_of_what_follows_bound_the_loop_as_well() -> None:
    follow = {"cpuLimitMcpu": {"low": 200, "high": 1500}, "egressMbps": {"low": 2, "high": 500}}
    [item] = declared(set_document(slices=[slice_document(follow=follow)])).slices
    assert item.described["bounds"] == {"cpu_limit_mcpu": [200, 1500], "egress_mbps": [2, 500]}
    [item] = declared(
        set_document(slices=[slice_document(follow=follow, bounds={"egressMbps": {"low": 3, "high": 400}})])
    ).slices
    assert item.described["bounds"] == {"cpu_limit_mcpu": [200, 1500], "egress_mbps": [3, 400]}


def test_the_schema_has_the_fields_that_a_loop_has() -> None:
    """Or a field could be declared that nobody reads; those of the configuration that are left out are named."""
    crd = yaml.safe_load((CRDS / "slicesets.yaml").read_text())
    slices = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["slices"]
    fields = slices["items"]["properties"]
    ours = {"podSelector", "container", "promise", "follow"}
    known = set(NodeSlice.__dataclass_fields__)
    assert {snake(name) for name in fields.keys() - ours} <= known
    left = known - {snake(name) for name in fields} - {"sla"}
    # A pod has a cgroup of its own, its request and its QFIs; the rest is for UPFs of other kinds.
    assert left == {"upf", "service", "listens", "own_cgroup", "cpu_request_mcpu", "ceiling_mcpu", "qfi"}
    assert set(FULL) == set(fields)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (set_document(policy={"agent": "queue-gredy"}), "policy.agent: unknown name 'queue-gredy'; did you mean"),
        (set_document(guard={"shipped": "lax"}), "guard.shipped: unknown name 'lax'"),
        (set_document(slices=[FULL | {"traffic": {"uePools": ["10.45.0.1/16"]}}]), "uePools"),
        (set_document(slices=[FULL | {"promise": {"committedMbps": -1, "delayBoundMs": 5}}]), "committedMbps = -1"),
        (set_document(slices=[slice_document(), slice_document("b", "000001")]), "the sNssai 1-000001 is used twice"),
        (set_document(slices=[FULL | {"weights": 3}]), "slices.a.weights: no such field"),
        (set_document(slices=[FULL | {"ownCgroup": True}]), "slices.a.ownCgroup: no such field"),
        (
            set_document(slices=[FULL | {"bounds": {"cpuLimitMcpu": {"low": 50, "high": 900}}}]),
            "bounds.cpuLimitMcpu = 50",
        ),
        (
            set_document(slices=[FULL | {"bounds": {"egressMbps": {"low": 1, "high": 91}}}]),
            "slices.a.bounds.egressMbps = 1 to 91: expected a range within follow.egressMbps, 1 to 90",
        ),
        (set_document(policy={"bundle": {"shipped": "/tmp/mine"}}), "policy.bundle.shipped: '/tmp/mine': expected"),
    ],
)
def test_what_no_loop_could_run_with_is_a_line_in_the_words_of_the_resource(document: Any, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        declared(document)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


D = "0a" * 32


def test_what_has_to_be_fetched_is_of_its_own_namespace() -> None:
    kinds = {
        "configMap": ({"name": "b"}, Wanted("core", "configMap", "b", "", D)),
        "volume": ({"name": "c", "path": "a/b"}, Wanted("core", "volume", "c", "a/b", D)),
    }
    for kind, (given, wanted) in kinds.items():
        result = declared(set_document(policy={"bundle": {kind: given | {"digest": D}}}))
        assert (result.bundle_from, result.policy) == (wanted, {})
    rules = declared(set_document(guard={"configMap": {"name": "g"}}))
    assert rules.rules_from == Wanted("core", "guard.configMap", "g", "guard.yaml")
    assert declared(set_document(policy={"bundle": {"shipped": "generalist"}})).policy == {"bundle": "generalist"}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"guard": {"configMap": {"name": "../../../secrets/x"}}}, "guard.configMap.name"),
        ({"guard": {"configMap": {"name": "g", "key": "a/b"}}}, "guard.configMap.key"),
        ({"policy": {"bundle": {"configMap": {"name": "a?watch=true", "digest": D}}}}, "policy.bundle.configMap.name"),
        ({"policy": {"bundle": {"configMap": {"name": "a", "digest": D.upper()}}}}, "configMap.digest: expected"),
        (
            {"policy": {"bundle": {"volume": {"name": "c", "path": "../../etc", "digest": D}}}},
            "volume.path = '../../etc': expected a folder in the volume",
        ),
        ({"policy": {"bundle": {"volume": {"name": "c", "path": "/etc", "digest": D}}}}, "volume.path = '/etc'"),
        ({"policy": {"bundle": {"volume": {"name": "../guest/c", "digest": D}}}}, "policy.bundle.volume.name"),
        ({"policy": {"bundle": {"image": {"reference": "r/b:1", "digest": D}}}}, "OCI images and claims are volumes"),
    ],
)
def test_what_could_lead_elsewhere_is_invalid(spec: Any, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        declared(set_document(**spec))
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "1", "b": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["0", "1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}, False),
        ({}, False),
    ],
)
def test_selectors_are_those_of_the_api_but_that_none_means_no_pod(selector: Any, fits: bool) -> None:
    assert selector_of(selector).fits({"a": "1"}) is fits
