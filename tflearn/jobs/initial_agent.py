"""Makes a run's agent for its environment, optionally with values of another run."""

import pathlib
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.actors import stored_state
from tflearn.checkpoints import warm_start
from tflearn.checkpoints.files import CheckpointFiles
from tflearn.distribute import precision as precisions
from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.experience import Experience
from tflearn.jobs.train_settings import Initial
from tflearn.learner import agent_data
from tflearn.policies import versions
from tflearn.run_dir import RunDir, local_path
from tflearn.train_step import create_train_step
from tflearn.types import Agent, AgentFactory, EnvironmentSpecs
from tflearn.weights import contract


def make(
    make_agent: AgentFactory,
    specs: EnvironmentSpecs,
    experience: Experience,
    placement: tf.distribute.Strategy,
    precision: str,
) -> Agent:
    """Makes the agent and its train step in the strategy `placement`, and logs the devices that train.

    Raises:
      TypeError: if the factory returns no agent.
      ValueError: if the agent cannot train on such data, or no part of it computes in `precision`.
    """
    logging.info(strategies.describe_devices(placement))
    with placement.scope(), precisions.use(precision):
        train_step = create_train_step()
        agent = make_agent(specs, train_step, experience)
        agent_data.check(agent, train_step, experience)
        if not agent_data.is_packaged(agent):
            agent_data.make_policy_variables(agent)
    precisions.check_agent(agent, precision)
    return agent


def load(agent: Agent, initial: Initial, run_dir: RunDir) -> None:
    """Loads values of another run or of an exported policy into the agent, unless its own run has a checkpoint.

    Args:
      agent: the run's agent.
      initial: where the values are.
      run_dir: this run's directory.

    Raises:
      ValueError: if the checkpoint or the policy is a URL, cannot be read, or does not fit.
    """
    source = initial.checkpoint or initial.policy
    if source is None:
        return
    local_path(source, 'initial_checkpoint' if initial.checkpoint else 'initial_policy')
    if steps := CheckpointFiles(run_dir.checkpoints, 1, None).steps():
        logging.info('loaded nothing from %s: this run continues from its own train step %d', source, steps[-1])
        return
    if initial.policy:
        _load_policy(agent, pathlib.Path(initial.policy))
        return
    checkpoint, prefixes = str(initial.checkpoint), initial.prefixes
    of_a_run = RunDir(checkpoint).checkpoints
    objects = {'agent': agent, 'train_step': agent.train_step_counter}
    warm_start.load(of_a_run if of_a_run.is_dir() else checkpoint, objects, prefixes)


def _load_policy(agent: Agent, path: pathlib.Path) -> None:
    """Loads an exported policy: a version, the newest one of a directory of versions, or the best one of a run."""
    if RunDir(path).greedy_policy.is_dir():
        directory = RunDir(path).greedy_policy
        version = versions.best_version(directory)
        version = versions.newest_version(directory) if version is None else version
        path = path if version is None else directory / str(version)
    elif (newest := versions.newest_version(path)) is not None:
        path = path / str(newest)
    policies = [agent.policy, agent.collect_policy]
    variables = {variable.ref(): variable for policy in policies for variable in contract.published(policy)}
    warm_start.load_policy(path, list(variables.values()))


def data_spec(agent: Agent, experience: Experience) -> types.NestedTensorSpec:
    """Returns the spec of a Trajectory in the replay: the agent's, with the policy state if it is stored.

    Args:
      agent: the run's agent.
      experience: the run's experience settings.

    Raises:
      ValueError: if the policy state should be stored, but there is none or the policy info cannot hold it; or if items
        have rows that no transform of the agent needs.
    """
    slicing, needed = experience.slicing, getattr(agent, 'extra_steps', (0, 0))
    if (slicing.history_steps, slicing.future_steps) != needed:
        raise UserValueError(
            f'got Slicing.history_steps={slicing.history_steps}, future_steps={slicing.future_steps}; need '
            f'{needed[0]} and {needed[1]}, as the transforms of the agent do'
        )
    spec: Any = agent.collect_data_spec
    if not experience.slicing.store_policy_state:
        return spec
    return spec.replace(policy_info=stored_state.add(spec.policy_info, agent.collect_policy.policy_state_spec))
