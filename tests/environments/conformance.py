"""The requirements of every environment factory: call `check` from its test."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.types import BatchedEnvironment, EnvironmentFactory, check_batch

FIRST, MID, LAST = (int(step_type) for step_type in (ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST))
NUM_ENVIRONMENTS = 3


def check_installed(package: str | None, extra: str, factory: EnvironmentFactory, arguments: dict[str, Any]) -> None:
    """Checks a factory, as `check` does, if its package is installed (None: it always is)."""
    if package and not importlib.util.find_spec(package):
        pytest.skip(f'{package} is not installed; pip install ".[{extra}]"')
    check(factory, **arguments)


def check_missing_package(package: str, extra: str, factory: EnvironmentFactory, remedy: str) -> None:
    """Checks that a factory without its package names in one line what to do."""
    if importlib.util.find_spec(package):
        pytest.skip(f'{package} is installed')
    with pytest.raises(ValueError) as raised:
        factory(num_environments=2, seed=0)
    assert f'which needs {package}; need that installed; {remedy}' in str(raised.value)
    assert str(raised.value).endswith(f' (the extra {extra})')
    assert '\n' not in str(raised.value)


def check(factory: EnvironmentFactory, num_steps: int = 300, seeded: bool = True, own_seeds: bool = True) -> None:
    """Checks that `factory` makes environments as `BatchedEnvironment` describes them.

    Args:
      factory: called with (num_environments=, seed=).
      num_steps: batched steps of a rollout; some episode should end within them.
      seeded: whether the episodes depend on the seed.
      own_seeds: whether environment i is seeded with seed + i; else the batch has one seed.
    """
    time_steps = rollout(factory, seed=7, num_steps=num_steps)
    environment = factory(num_environments=NUM_ENVIRONMENTS, seed=7)
    try:
        check_specs(environment)
        check_time_steps(environment, time_steps)
        check_wrong_actions(environment)
    finally:
        environment.close()
        environment.close()
    if any(np.isfinite(leaf.maximum).any() for leaf in float_leaves(environment)):
        check_clipping(factory)
    # The ignored actions differ in the second rollout.
    assert_equal(time_steps, rollout(factory, seed=7, num_steps=num_steps, ignored_seed=1))
    if seeded:
        check_seeds(factory, time_steps, own_seeds)


def check_specs(environment: BatchedEnvironment) -> None:
    assert environment.num_environments == NUM_ENVIRONMENTS
    for spec in tf.nest.flatten(environment.specs.action):
        assert np.all(spec.minimum <= spec.maximum), spec
    for name in ('observation', 'action'):
        for spec in tf.nest.flatten(getattr(environment.specs, name)):
            assert spec.name.split('/')[0] == name, spec


def check_time_steps(environment: BatchedEnvironment, time_steps: list[ts.TimeStep]) -> None:
    for time_step in time_steps:
        check_batch(time_step, environment.specs.time_step, NUM_ENVIRONMENTS, 'time step')
        assert all(isinstance(leaf, np.ndarray) for leaf in tf.nest.flatten(time_step))
        assert np.isin(time_step.discount[time_step.step_type == LAST], (0, 1)).all()
        assert (time_step.discount[time_step.step_type != LAST] == 1).all()
        assert (time_step.reward[time_step.step_type == FIRST] == 0).all()
        for leaf, spec in zip(
            tf.nest.flatten(time_step.observation), tf.nest.flatten(environment.specs.observation), strict=True
        ):
            assert ((leaf >= spec.minimum) & (leaf <= spec.maximum)).all(), (spec, leaf)
    step_types = np.stack([time_step.step_type for time_step in time_steps])
    assert (step_types[0] == FIRST).all()
    assert np.array_equal(step_types[1:] == FIRST, step_types[:-1] == LAST)
    assert (step_types == LAST).any(), 'no episode ended; give more steps'


def check_wrong_actions(environment: BatchedEnvironment) -> None:
    """Checks that wrong actions are rejected, in an episode's first step and in later ones."""
    drawn = actions(environment, np.random.default_rng(0))
    for i, spec in enumerate(tf.nest.flatten(environment.specs.action)):
        action = next(drawn)
        leaves = tf.nest.flatten(action)
        for wrong in wrong_leaves(leaves[i], spec):
            wrong_action = tf.nest.pack_sequence_as(action, [*leaves[:i], wrong, *leaves[i + 1 :]])
            environment.reset()
            check_rejected(environment, wrong_action)
            environment.step(action)
            check_rejected(environment, wrong_action)


def wrong_leaves(leaf: np.ndarray, spec: Any) -> Iterator[np.ndarray]:
    """Yields arrays that do not match the action `spec`; `leaf` is one that does."""
    yield leaf[:-1]
    yield leaf.astype(np.float16)
    if spec.dtype.is_floating:
        values = [np.nan, np.inf, -np.inf]
    else:
        limits = np.iinfo(leaf.dtype)
        values = [spec.minimum - 1] * bool(np.all(spec.minimum > limits.min))
        values += [spec.maximum + 1] * bool(np.all(spec.maximum < limits.max))
    for value in values:
        wrong = leaf.copy()
        wrong[-1] = value
        yield wrong


def check_rejected(environment: BatchedEnvironment, action: Any) -> None:
    try:
        environment.step(action)
    except ValueError as error:
        assert 'got ' in str(error) and 'need ' in str(error), error
    else:
        raise AssertionError(f'the action {action} was taken; need {environment.specs.action}')


def check_clipping(factory: EnvironmentFactory) -> None:
    """Checks that floats out of bounds have the effect of the bounds."""
    at_bounds, beyond = (rollout(factory, seed=7, num_steps=20, excess=excess) for excess in (0.0, 7.5))
    assert_equal(at_bounds, beyond)


def float_leaves(environment: BatchedEnvironment) -> list[Any]:
    return [spec for spec in tf.nest.flatten(environment.specs.action) if spec.dtype.is_floating]


def check_infos(environment: BatchedEnvironment, all_infos: list[dict[str, np.ndarray]]) -> None:
    assert all_infos[0] == {}
    known: set[str] = set()
    for info in all_infos[1:]:
        assert known <= set(info), 'a key that has appeared has to stay'
        known = set(info)
        for key, value in info.items():
            assert value.dtype.kind in 'biu' or value.dtype == np.float32, (key, value.dtype)
            assert value.shape[:1] == (NUM_ENVIRONMENTS,), (key, value.shape)
    assert environment.num_rebuilt == 0


def check_seeds(factory: EnvironmentFactory, time_steps: list[ts.TimeStep], own_seeds: bool) -> None:
    first = tf.nest.flatten(time_steps[0].observation)
    for i in range(1, NUM_ENVIRONMENTS):
        assert any(not np.array_equal(leaf[0], leaf[i]) for leaf in first), f'environments 0 and {i} are alike'
    other = tf.nest.flatten(rollout(factory, seed=1000, num_steps=1)[0].observation)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True)), 'two seeds gave the same'
    if not own_seeds:
        return
    next_one = tf.nest.flatten(rollout(factory, seed=8, num_steps=1)[0].observation)
    for a, b in zip(first, next_one, strict=True):
        assert np.array_equal(a[1], b[0]), 'environment i has to be seeded with seed + i'


def rollout(
    factory: EnvironmentFactory,
    seed: int | None,
    num_steps: int,
    ignored_seed: int = 0,
    excess: float | None = None,
) -> list[ts.TimeStep]:
    """Returns num_steps + 1 time steps of random actions; those at LAST are drawn with `ignored_seed`.

    Both the time steps and the actions are checked to be as they were, at the end or after the step.

    Args:
      factory: makes the environment.
      seed: of the environment.
      num_steps: batched steps.
      ignored_seed: of the actions at LAST.
      excess: moves each float to the bound nearest to it, if that is finite, and so far beyond.
    """
    environment = factory(num_environments=NUM_ENVIRONMENTS, seed=seed)
    try:
        drawn = actions(environment, np.random.default_rng(0))
        ignored = actions(environment, np.random.default_rng(ignored_seed))
        time_steps = [environment.reset()]
        copies = [tf.nest.map_structure(np.copy, time_steps[0])]
        infos = [dict(environment.info)]
        for _ in range(num_steps):
            last = time_steps[-1].step_type == LAST
            action = tf.nest.map_structure(
                lambda a, b, last=last: np.where(last.reshape(-1, *[1] * (a.ndim - 1)), b, a),
                next(drawn),
                next(ignored),
            )
            if excess is not None:
                action = moved_out(action, environment.specs.action, excess)
            given = tf.nest.map_structure(np.copy, action)
            time_steps.append(environment.step(action))
            tf.nest.map_structure(np.testing.assert_array_equal, action, given)
            copies.append(tf.nest.map_structure(np.copy, time_steps[-1]))
            infos.append(dict(environment.info))
        check_infos(environment, infos)
    finally:
        environment.close()
    assert_equal(time_steps, copies)
    return time_steps


def actions(environment: BatchedEnvironment, rng: np.random.Generator) -> Iterator[Any]:
    """Yields random actions [B, ...] within the bounds (an unbounded side counts as 1)."""

    def draw(spec: Any) -> np.ndarray:
        dtype = spec.dtype.as_numpy_dtype
        low, high = np.maximum(spec.minimum, -1) if not spec.dtype.is_integer else spec.minimum, spec.maximum
        shape = (NUM_ENVIRONMENTS, *spec.shape)
        if spec.dtype.is_integer:
            return rng.integers(low, high, shape, dtype, endpoint=True)
        return rng.uniform(low, np.minimum(high, low + 2), shape).astype(dtype)

    while True:
        yield tf.nest.map_structure(draw, environment.specs.action)


def moved_out(action: Any, action_spec: Any, excess: float) -> Any:
    """Returns actions whose floats lie `excess` beyond the finite bounds that they are nearest to."""

    def move(leaf: np.ndarray, spec: Any) -> np.ndarray:
        if not spec.dtype.is_floating:
            return leaf
        high = spec.maximum - leaf < leaf - spec.minimum
        moved = np.where(high, spec.maximum + excess, spec.minimum - excess)
        return np.where(np.isfinite(moved), moved, leaf).astype(leaf.dtype)

    return tf.nest.map_structure(move, action, action_spec)


def assert_equal(some: list[ts.TimeStep], others: list[ts.TimeStep]) -> None:
    for i, (one, other) in enumerate(zip(some, others, strict=True)):
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert np.array_equal(a, b), f'time step {i} differs: {a} and {b}'
