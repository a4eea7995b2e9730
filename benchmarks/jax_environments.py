"""PPO on an environment in JAX: environment steps per second, and those of Brax's own trainer, on this machine.

    python -m benchmarks.jax_environments --rounds=5

Needs the extra `tasks`, with JAX 0.8: Brax's trainer calls a function that later ones do not have. Both sides train
with 1,024 environments, 16 steps of each an iteration, four epochs of 16 minibatches, and networks of two layers of 64
units, normalize observations, and are timed over `--secs` seconds of stepping and training, after what they compile.
Each run is a process of its own, sides in turn. The third row is `jax_env` alone, with random actions. Brax compiles
environments, policy and training to one program; here the actions and observations pass through NumPy, and the policy
and the training are TensorFlow's.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

NUM_ENVIRONMENTS, UNROLL, EPOCHS, MINIBATCHES, UNITS = 1_024, 16, 4, 16, (64, 64)
ITERATION = NUM_ENVIRONMENTS * UNROLL
SIDES = ('ours', 'brax', 'environments alone')


def ours(task: str, secs: float) -> float:
    """Trains for some time after the third iteration; returns environment steps per second."""
    from tflearn.agents import ppo
    from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
    from tflearn.extensions.tasks import jax_env
    from tflearn.files.run_dir import RunDir
    from tflearn.jobs.run import Run
    from tflearn.jobs.synchronous import synchronous
    from tflearn.jobs.train import StopConditions
    from tflearn.networks.networks import NetworkOptions

    stop = threading.Event()
    times: list[float] = []

    def make_environment(num_environments: int, seed: int | None) -> Any:
        environment = jax_env.make(task, num_environments, seed, kwargs={'backend': 'spring'})
        step = environment.step

        def timed(action: Any) -> Any:
            times.append(time.perf_counter())
            if times[-1] - times[min(3 * UNROLL, len(times) - 1)] > secs:
                stop.set()
            return step(action)

        environment.step = timed  # type: ignore[method-assign]
        return environment

    slicing = Slicing(sequence_length=UNROLL + 1, stride=UNROLL, cross_episodes=True)
    queue = Queue(max_size=NUM_ENVIRONMENTS, training=Iteration(EPOCHS, ITERATION // MINIBATCHES))
    with tempfile.TemporaryDirectory() as directory:
        synchronous(
            run=Run(RunDir(directory), stop),
            make_environment=make_environment,
            make_agent=functools.partial(ppo.make_agent, network=NetworkOptions(fc_layer_params=UNITS)),
            experience=Experience(slicing, queue, BatchItems(NUM_ENVIRONMENTS)),
            num_environments=NUM_ENVIRONMENTS,
            stop_conditions=StopConditions(num_train_steps=10**6),
        )
    measured = np.array(times[3 * UNROLL :])
    return NUM_ENVIRONMENTS * (len(measured) - 1) / (measured[-1] - measured[0])


def brax(task: str, secs: float) -> float:
    """Trains with Brax's PPO for about as long; returns environment steps per second."""
    from brax import envs
    from brax.training.agents.ppo import networks, train

    times: list[float] = []
    steps: list[int] = []

    def progress(num_steps: int, _: Any) -> None:
        times.append(time.perf_counter())
        steps.append(num_steps)
        if times[-1] - times[0] > secs:
            raise KeyboardInterrupt

    network = functools.partial(
        networks.make_ppo_networks, policy_hidden_layer_sizes=UNITS, value_hidden_layer_sizes=UNITS
    )
    with contextlib.suppress(KeyboardInterrupt):
        train.train(
            envs.get_environment(task.partition('/')[2], backend='spring'),
            num_timesteps=10_000 * ITERATION,
            num_evals=10_001,
            episode_length=1_000,
            num_envs=NUM_ENVIRONMENTS,
            unroll_length=UNROLL,
            batch_size=NUM_ENVIRONMENTS // MINIBATCHES,
            num_minibatches=MINIBATCHES,
            num_updates_per_batch=EPOCHS,
            normalize_observations=True,
            network_factory=network,
            run_evals=False,
            progress_fn=progress,
        )
    return (steps[-1] - steps[0]) / (times[-1] - times[0])


def alone(task: str, secs: float) -> float:
    """Steps the environments with random actions; returns environment steps per second."""
    from tflearn.extensions.tasks import jax_env

    environment = jax_env.make(task, NUM_ENVIRONMENTS, 0, kwargs={'backend': 'spring'})
    shape = (NUM_ENVIRONMENTS, *environment.specs.action.shape)
    actions = np.random.default_rng(0).uniform(-1, 1, (UNROLL, *shape)).astype(np.float32)
    environment.reset()
    for action in np.concatenate([actions] * 4):  # also compiles the beginning of episodes
        environment.step(action)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < secs / 4:
        environment.step(actions[count % UNROLL])
        count += 1
    return NUM_ENVIRONMENTS * count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--task', default='brax/ant', help='an environment of Brax [%(default)s]')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--secs', type=float, default=60.0)
    parser.add_argument('--json', type=pathlib.Path, help='keeps what was measured, and goes on with it')
    parser.add_argument('--side', choices=SIDES, help='runs one side once and prints its figure')
    options = parser.parse_args()
    if options.side:
        rate = {'ours': ours, 'brax': brax, 'environments alone': alone}[options.side](options.task, options.secs)
        print(json.dumps(rate))
        return
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    environment = {**os.environ, 'TF_USE_LEGACY_KERAS': '1', 'JAX_PLATFORMS': 'cpu', 'TF_CPP_MIN_LOG_LEVEL': '3'}
    for round_ in range(options.rounds):
        for side in SIDES:
            rates = found.setdefault(side, [])
            if len(rates) > round_:
                continue
            command = [sys.executable, '-m', 'benchmarks.jax_environments', f'--side={side}', f'--task={options.task}']
            command.append(f'--secs={options.secs}')
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=1200
            )
            rates.append(json.loads(ended.stdout.splitlines()[-1]))
            print(f'round {round_ + 1}: {side}: {rates[-1]:,.0f} environment steps/s', flush=True)
            if options.json:
                options.json.write_text(json.dumps(found))
    print(f'\n{options.task}, medians of {options.rounds} rounds\n\n| | environment steps/s | to Brax |\n|---|---|---|')
    for side in SIDES:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(found[side], found['brax'], strict=True))
        print(f'| {side} | {statistics.median(found[side]):,.0f} | {ratio:.2f} |')


if __name__ == '__main__':
    main()
