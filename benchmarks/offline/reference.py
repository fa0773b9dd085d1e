"""d3rlpy's side of the comparison: trains one algorithm on arrays, writes the policy. Runs in its own environment.

    build/offline-reference/bin/python benchmarks/offline/reference.py data.npz job.json policy.pt

``job.json`` is written by ``compare.py``: algorithm, seed, updates, batch, gamma, hidden, and the algorithm's settings
by the names that slicepilot has for them. ``policy.pt`` is TorchScript, from observations to actions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.algos.qlearning.torch.cql_impl import CQLImpl
from d3rlpy.models.torch import build_squashed_gaussian_distribution


def main() -> None:
    """Train and write."""
    data_file, job_file, out = map(Path, sys.argv[1:])
    job = json.loads(job_file.read_text())
    torch.set_num_threads(1)
    d3rlpy.seed(job["seed"])
    if job.get("backup") == "drawn":
        CQLImpl._compute_deterministic_target = drawn_target
    learner = algorithm(job).create(device="cpu:0")
    learner.fit(
        dataset(np.load(data_file)),
        n_steps=job["updates"],
        n_steps_per_epoch=job["updates"],
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
        save_interval=job["updates"] + 1,
    )
    learner.save_policy(str(out))


def drawn_target(self: Any, batch: Any) -> torch.Tensor:
    """The critics' target as in the authors' code, of an action drawn from the policy; d3rlpy takes the mode."""
    chosen = build_squashed_gaussian_distribution(self._modules.policy(batch.next_observations)).sample()
    return self._targ_q_func_forwarder.compute_target(batch.next_observations, chosen, reduction="min")


def dataset(arrays: Any) -> d3rlpy.dataset.MDPDataset:
    """The arrays of ``compare.py``.

    d3rlpy learns nothing from the last row of an episode that ran out of time and takes its observation as what
    followed the row before: so every episode gets a row more, with its last observation.
    """
    ends = np.cumsum(arrays["lengths"])
    last = ends + np.arange(len(ends))
    timeouts = np.zeros(len(arrays["observations"]), np.float32)
    timeouts[last] = 1.0
    return d3rlpy.dataset.MDPDataset(
        observations=arrays["observations"],
        actions=np.insert(arrays["actions"], ends, arrays["actions"][ends - 1], axis=0),
        rewards=np.insert(arrays["rewards"], ends, 0.0),
        terminals=np.zeros_like(timeouts),
        timeouts=timeouts,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )


def algorithm(job: dict[str, Any]) -> Any:
    """d3rlpy's configuration of the same algorithm."""
    given = job["settings"]
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=job["hidden"])
    common = {
        "batch_size": job["batch"],
        "gamma": job["gamma"],
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
    }
    if job["algorithm"] == "bc":
        return d3rlpy.algos.BCConfig(**common, learning_rate=given["learning_rate"], encoder_factory=encoder)
    common |= {
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
        "actor_learning_rate": given["actor_learning_rate"],
        "critic_learning_rate": given["critic_learning_rate"],
        "tau": given["target_rate"],
    }
    if job["algorithm"] == "td3-bc":
        return d3rlpy.algos.TD3PlusBCConfig(
            **common,
            alpha=given["alpha"],
            target_smoothing_sigma=given["policy_noise"],
            target_smoothing_clip=given["noise_clip"],
            update_actor_interval=given["actor_interval"],
        )
    if job["algorithm"] == "iql":
        return d3rlpy.algos.IQLConfig(
            **common,
            value_encoder_factory=encoder,
            expectile=given["expectile"],
            weight_temp=given["inverse_temperature"],
            max_weight=given["max_weight"],
        )
    return d3rlpy.algos.CQLConfig(
        **common,
        temp_learning_rate=given["temperature_learning_rate"],
        alpha_learning_rate=0.0,  # a fixed weight
        initial_temperature=given["initial_temperature"],
        conservative_weight=2.0 * given["conservative_weight"],  # as many times the squared error, ours times its half
        n_action_samples=given["action_samples"],
    )


if __name__ == "__main__":
    main()
