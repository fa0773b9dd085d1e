"""From a trained network to ``policy.onnx``, with the proof that both decide alike."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

from slicepilot.agents.learned.bundle import Agreement
from slicepilot.agents.learned.deep_sets import CORRECTIONS, GRAPH_NAME, KNOBS, TRANSPOSED, DeepSets
from slicepilot.agents.learned.guide_kernels import NUM_CORRECTIONS
from slicepilot.agents.runtime.allowed import check_model
from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS

from .guided import GuidedPolicy
from .node_shares import ACTIVE, with_shares
from .slice_network import DeterministicPolicy

OPSET = 18  # the first that the exporter emits without conversion; onnxruntime 1.14 and later read it
SLICE_COUNTS = (2, 5, 64)
TOLERANCE = 1e-5
OBSERVATIONS = 1000


class ExportError(RuntimeError):
    """The exported policy does not decide as the trained policy does."""


def to_onnx(policy: DeterministicPolicy | GuidedPolicy) -> bytes:
    """One self-contained ONNX model: ``observation`` (lanes, slices, D) to ``action`` (lanes, slices, A)."""
    policy = policy.eval().cpu()
    example = torch.zeros(3, 4, policy.columns)
    axes = {0: torch.export.Dim("lanes", min=1), 1: torch.export.Dim("slices", min=1)}
    model = exported(policy, example, axes)
    _name_weights(model.graph, policy)
    return model.SerializeToString(deterministic=True)


def exported(network: nn.Module, example: Tensor, axes: Mapping[int, Any]) -> Any:
    """A network with a single input and output as an ONNX model without the exporter's traces.

    Args:
        network: in evaluation mode.
        example: an input.
        axes: dimensions of the input that may vary, `torch.export.Dim` by number.
    """
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's own deprecations
            program: Any = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                dynamic_shapes=(dict(axes),),
                opset_version=OPSET,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    model = program.model_proto  # made anew at each access
    strip_metadata(model)
    return model


def strip_metadata(model: Any) -> None:
    """Drop the exporter's stack traces: they hold paths of the machine and make equal models differ."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _name_weights(graph: Any, policy: DeterministicPolicy | GuidedPolicy) -> None:
    """Name constants after the parameters that they hold: the exporter numbers the matrices that it transposes.

    By these names `slicepilot.agents.learned.deep_sets` runs the network.
    """
    names = {}
    for tensor in graph.initializer:
        stored = onnx.numpy_helper.to_array(tensor)
        for name, parameter in policy.named_parameters():
            values = parameter.detach().numpy()
            if stored.ndim == 2 and tensor.name != name and np.array_equal(stored, values.T, equal_nan=True):
                names[tensor.name] = f"{name}{TRANSPOSED}"
                tensor.name = names[tensor.name]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    graph.name = f"{GRAPH_NAME}{KNOBS if isinstance(policy, DeterministicPolicy) else CORRECTIONS}"


def random_observations(
    num_slices: int, count: int, rng: np.random.Generator, columns: int = NUM_FEATURES
) -> FloatArray:
    """Tables (count, S, D) over the encoder's whole range; a fifth of the slices absent."""
    table = rng.uniform(-1.0, 1.0, (count, num_slices, columns)).astype(np.float32)
    table[..., ACTIVE] = rng.random((count, num_slices)) > 0.2
    return table


def check_agreement(
    policy: DeterministicPolicy | GuidedPolicy, model: bytes, recorded: Sequence[FloatArray] = (), seed: int = 0
) -> Agreement:
    """Largest difference between network and export over random tables of several slice counts and recorded tables.

    The export is run by onnxruntime and as `slicepilot.agents.learned.agent.LearnedAgent` runs it.

    Args:
        policy: the trained network.
        model: its export.
        recorded: observations (N, S, D) from an environment.
        seed: of the random tables, of which there are `OBSERVATIONS` for each of `SLICE_COUNTS`.

    Raises:
        ExportError: an action differs by more than `TOLERANCE`, or is not a number.
    """
    rng = np.random.default_rng(seed)
    tables = [random_observations(s, OBSERVATIONS, rng, policy.columns) for s in SLICE_COUNTS]
    guided = isinstance(policy, GuidedPolicy)
    tables += recorded if guided else [with_shares(torch.from_numpy(table)).numpy() for table in recorded]
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    actions = NUM_CORRECTIONS if guided else NUM_KNOBS
    network = DeepSets.of(check_model(model), policy.columns, actions)
    worst = 0.0
    for table in tables:
        with torch.no_grad():
            trained = policy(torch.from_numpy(table)).numpy()
        exported: Any = session.run([OUTPUT_NAME], {INPUT_NAME: table})[0]
        decided = [exported]
        if network is not None:
            network.bind(table, action := np.empty_like(exported))
            network.run()
            decided.append(action)
        error = np.abs(np.array(decided) - trained).max()
        worst = max(worst, float(error)) if np.isfinite(error) else float("inf")
    counts = tuple(sorted({table.shape[1] for table in tables}))
    if worst > TOLERANCE:
        raise ExportError(f"policy.onnx: actions differ by {worst:.2e} from the network; expected {TOLERANCE:g}")
    return Agreement(worst, sum(len(table) for table in tables), counts)
