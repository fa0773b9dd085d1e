"""``slicepilot bench``: what things cost on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from slicepilot.cli.schemas.bench import SimulatorSpeed
from slicepilot.cli.shared.output import console, print_json, progress_bar


def sim(
    num_envs: Annotated[int, typer.Option(min=1, help="Number of environments in the vector.")] = 1000,
    num_slices: Annotated[int, typer.Option(min=1, max=256, help="Number of slices per node.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each repetition.")] = 1.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Number of repetitions; the result is the median.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure environment steps per second of the simulator, with decoding, encoding and reward.

    Measured are the vector environment, as training uses it, and a single environment.

    Example: [bold]slicepilot bench sim --num-slices 64[/bold]
    """
    import gymnasium as gym
    import numpy as np

    from slicepilot.env import ENV_ID
    from slicepilot.env.environments.vector_env import SliceVectorEnv
    from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend, repeated_slices
    from slicepilot.env.simulator.scenario import Scenario

    ramp = ScenarioRuns(Scenario.from_yaml("andrade-ramp"))
    episodes = ramp if num_slices == len(ramp.slices) else repeated_slices(ramp, num_slices)
    vector = SliceVectorEnv(SimulatorBackend(episodes, num_envs))
    vector.reset(seed=0)
    vector.action_space.seed(0)
    actions = [vector.action_space.sample() for _ in range(8)]
    single = gym.make(ENV_ID, backend=SimulatorBackend(episodes, 1), disable_env_checker=True)
    single.reset(seed=0)
    single.action_space.seed(0)
    single_actions = [single.action_space.sample() for _ in range(64)]

    def step_single(i: int) -> None:
        if single.step(single_actions[i % 64])[3]:
            single.reset()

    with progress_bar() as progress:
        task = progress.add_task("measuring", total=2 * repetitions)
        vector_rates, single_rates = [], []
        for _ in range(repetitions):
            vector_rates.append(num_envs * _rate(lambda i: vector.step(actions[i % 8]), seconds, 1))
            progress.advance(task)
            single_rates.append(_rate(step_single, seconds, 200))
            progress.advance(task)
    result = {
        "vector_env_steps_per_s": float(np.median(vector_rates)),
        "single_env_steps_per_s": float(np.median(single_rates)),
        "num_envs": num_envs,
        "num_slices": num_slices,
    }
    if as_json:
        print_json(result, SimulatorSpeed)
        return
    console.print(f"{num_envs} environments, {num_slices} slices each, median of {repetitions} repetitions")
    for name, rates in (("vector", vector_rates), ("single", single_rates)):
        span = f"({min(rates):,.0f} to {max(rates):,.0f})"
        console.print(f"  {name + ':':<9} {np.median(rates):>12,.0f} env-steps/s  {span}")


def _rate(step: Callable[[int], object], seconds: float, batch: int) -> float:
    """Calls per second over about ``seconds``, after a batch of warm-up."""
    for i in range(batch):
        step(i)
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for i in range(batch):
            step(calls + i)
        calls += batch
    return calls / elapsed
