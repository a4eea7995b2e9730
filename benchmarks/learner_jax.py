"""The steps of `learner.py`'s DQN case as one JAX program: `jit` of `lax.scan`. A process of its own environment.

Reads numbers of train steps from its input, takes them, and answers each with a line. The step is that of the case:
double DQN with Huber's loss, Adam, and a target network that is copied every 100 steps; 4 numbers, 100-50 units, two
actions, batches of 64, which are in memory (200 of them, drawn beforehand).
"""

import functools
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

UNITS, BATCH_SIZE, NUM_BATCHES, TARGET_INTERVAL, GAMMA = (4, 100, 50, 2), 64, 200, 100, 0.99
optimizer = optax.adam(1e-3)


def q_values(parameters: Any, observations: jax.Array) -> jax.Array:
    """Returns the values of the actions [B, 2]."""
    for i, (kernel, bias) in enumerate(parameters):
        observations = observations @ kernel + bias
        observations = observations if i == len(parameters) - 1 else jax.nn.relu(observations)
    return observations


def loss(parameters: Any, target: Any, batch: Any) -> jax.Array:
    """Returns the mean loss of a batch."""
    observations, actions, rewards, discounts, following = batch
    best = jnp.argmax(q_values(parameters, following), axis=1)
    bootstrapped = jnp.take_along_axis(q_values(target, following), best[:, None], axis=1)[:, 0]
    taken = jnp.take_along_axis(q_values(parameters, observations), actions[:, None], axis=1)[:, 0]
    return optax.huber_loss(taken, rewards + GAMMA * discounts * jax.lax.stop_gradient(bootstrapped)).mean()


def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    """Takes one step; the state is (parameters, target, optimizer's state, step)."""
    parameters, target, moments, step = state
    value, gradients = jax.value_and_grad(loss)(parameters, target, batch)
    updates, moments = optimizer.update(gradients, moments)
    parameters = optax.apply_updates(parameters, updates)
    due = (step + 1) % TARGET_INTERVAL == 0
    target = jax.tree_util.tree_map(lambda new, old: jnp.where(due, new, old), parameters, target)
    return (parameters, target, moments, step + 1), value


@functools.partial(jax.jit, static_argnums=2)
def take(state: Any, batches: Any, num_steps: int) -> tuple[Any, jax.Array]:
    """Takes so many steps, on one batch after the other."""
    state, losses = jax.lax.scan(train_step, state, jax.tree_util.tree_map(lambda part: part[:num_steps], batches))
    return state, losses.mean()


def main() -> None:
    """Serves until the end of the input."""
    random = np.random.default_rng(0)
    parameters = [
        (jnp.asarray(random.uniform(-1, 1, (before, after)) / before**0.5, jnp.float32), jnp.zeros(after))
        for before, after in itertools.pairwise(UNITS)
    ]
    shape = (NUM_BATCHES, BATCH_SIZE)
    batches = (
        jnp.asarray(random.normal(size=(*shape, 4)), jnp.float32),
        jnp.asarray(random.integers(0, 2, shape), jnp.int32),
        jnp.ones(shape),
        jnp.ones(shape),
        jnp.asarray(random.normal(size=(*shape, 4)), jnp.float32),
    )
    state = (parameters, parameters, optimizer.init(parameters), 0)
    for line in sys.stdin:
        left = int(line)
        while left > 0:
            state, mean = take(state, batches, min(left, NUM_BATCHES))
            left -= NUM_BATCHES
        print(float(mean), flush=True)


if __name__ == '__main__':
    main()
