"""A small program of a user, for a strict type check: it is not run."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

import tflearn
from tflearn.agents import dqn
from tflearn.environments import gymnasium_env
from tflearn.networks.networks import NetworkOptions


def expert_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset.range(context.get_per_replica_batch_size(64))


def learn(agent: Any) -> float:
    steps: list[int] = []
    saved = tflearn.PeriodicAction(steps.append, every_secs=60.0)
    options = tflearn.LearnerOptions(
        checkpoint_interval_steps=500,
        summaries=tflearn.SummaryOptions(interval_steps=100),
        loop=tflearn.LoopOptions(),
    )
    with tflearn.make_strategy('cpu').scope():
        steps.append(int(tflearn.create_train_step().numpy()))
    learner = tflearn.Learner(agent, expert_data, tflearn.RunDir('runs/expert'), triggers=[saved], options=options)
    result: tflearn.TrainResult = learner.run(100)
    learner.close()
    return result.loss


def make_agent(specs: tflearn.EnvironmentSpecs, train_step: tf.Variable, experience: tflearn.Experience) -> Any:
    return dqn.make_agent(specs, train_step, experience, network=NetworkOptions(fc_layer_params=(64,)))


def train() -> np.ndarray[Any, Any]:
    run = tflearn.train(
        make_environment=functools.partial(gymnasium_env.make, 'CartPole-v1'),
        make_agent=make_agent,
        experience=tflearn.Experience(replay=tflearn.Uniform(samples_per_insert=8.0)),
        num_train_steps=1_000,
        root_dir='runs/cartpole',
        target_return=195.0,
    )
    assert run.reason and run.train_step and run.best_return == max(run.returns), run.run_dir.root
    policy: tflearn.PolicyFunction = tflearn.load_policy(run.run_dir.greedy_policy)
    policy.reset()
    return np.asarray(policy(np.zeros((2, 4), np.float32)))
