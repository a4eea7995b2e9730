"""The evaluator's returns are those of a plain loop over gymnasium and the SavedModel."""

import functools
import json
import math

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from tests.testing import example_policies
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, write_json
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.run import Run
from tflearn.policies.exporter import PolicyExporter

NUM_EPISODES = 200
NUM_ENVIRONMENTS = 16
SEED = 7


def returns_of_a_plain_loop(path, num_episodes, seed):
    """Uses no code of this project."""
    act = tf.saved_model.load(str(path)).signatures['serving_default']
    environment = gymnasium.make('CartPole-v1')
    returns = []
    for episode in range(num_episodes):
        observation, _ = environment.reset(seed=seed if episode == 0 else None)
        total, ended = 0.0, False
        while not ended:
            action = act(observation=tf.constant(observation[None]))['action'].numpy()[0]
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    environment.close()
    return returns


def test_returns_equal_those_of_a_plain_loop(tmp_path):
    run_dir = RunDir(tmp_path)
    make = functools.partial(gymnasium_env.make, 'CartPole-v1', vectorization='in_process')
    specs = specs_of(make)
    linear = example_policies.Linear(specs.observation, specs.action)
    linear.set((0.0, 0.0, 1.0, 0.0))  # uses only the angle: the pole falls after about 40 steps, with some variance
    path = PolicyExporter(linear.policy, run_dir.greedy_policy).export(1, {'env_steps': 2})
    write_json(run_dir.train_result, {'reason': 'enough', 'train_step': 1, 'env_steps': 2, 'seconds': 3.0})
    evaluate(
        run=Run(run_dir, connect_timeout_secs=10.0),
        make_environment=make,
        num_episodes=NUM_EPISODES,
        num_environments=NUM_ENVIRONMENTS,
        seed=SEED,
    )
    (evaluation,) = map(json.loads, run_dir.evaluations.read_text().splitlines())
    low, high = evaluation['mean_return_interval']
    quotas = [NUM_EPISODES // NUM_ENVIRONMENTS + (i < NUM_EPISODES % NUM_ENVIRONMENTS) for i in range(NUM_ENVIRONMENTS)]
    plain = [value for i, quota in enumerate(quotas) for value in returns_of_a_plain_loop(path, quota, SEED + i)]
    radius = 1.97 * np.std(plain, ddof=1) / math.sqrt(NUM_EPISODES)
    assert evaluation['returns'] == plain
    assert np.std(plain) > 3, 'equal returns would show nothing'
    assert high - low == pytest.approx(2 * radius, rel=0.01)
