"""On several replicas XLA compiles the gradients of each part; the train steps are those without it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.testing import algorithms, lanes
from tests.testing.algorithms import ALGORITHMS
from tflearn.core import strategies
from tflearn.sampling import minibatches


def _trained(algorithm, in_xla):
    """Returns losses and weights of a few train steps on two replicas with batches of their own."""
    tf.keras.utils.set_random_seed(1)
    strategy = strategies.make('mirrored:2')
    with strategy.scope():
        agent = algorithm.make()
        for i, variable in enumerate(agent.policy.variables()):
            if variable.dtype.is_floating and variable.shape.rank == 2:
                variable.assign(tf.random.stateless_uniform(variable.shape, (i, 7), -0.3, 0.3))
        agent.initialize()
        parts = [example_data.sequences(agent, 8, algorithm.length, seed=seed) for seed in range(2)]
        if algorithm.experience.slicing.store_policy_state:
            parts = [example_data.with_stored_states(part, agent) for part in parts]

    def step(data):
        given = (data,)
        if hasattr(agent, 'prepare'):  # its train steps take samples, which a source prepares once for many of them
            given = agent.prepare(data)
            if not getattr(agent, 'trains_on_sequences', False):
                given = tf.nest.map_structure(minibatches.flat, given)
        with strategies.compiling(in_xla):
            return agent.train(*given).loss

    def on_all(data):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, (data,)), axis=None)

    with strategy.scope():
        train = tf.function(on_all, autograph=False)
        data = strategies.distributed(strategy, parts)
        losses = [float(train(data)) for _ in range(5)]
    return losses, [variable.numpy() for variable in agent.policy.variables()]


NAMES = [
    name
    for name in algorithms.names('ddpg')
    if {'uniform', 'queue'} & {*ALGORITHMS[getattr(name, 'values', (name,))[0]].example.data}
]


@lanes.compiles
@pytest.mark.parametrize('name', NAMES)
def test_trains_like_without_it(name):
    (expected, weights), (found, compiled) = (_trained(ALGORITHMS[name], in_xla) for in_xla in (False, True))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    for one, other in zip(compiled, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
