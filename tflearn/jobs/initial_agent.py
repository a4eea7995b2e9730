"""Makes a run's agent for its environment, optionally with values of another run."""

from collections.abc import Collection, Mapping
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
from tflearn.learner import agent_data
from tflearn.run_dir import RunDir, local_path
from tflearn.train_step import create_train_step
from tflearn.types import Agent, AgentFactory, EnvironmentSpecs


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


def load(agent: Agent, checkpoint: str | None, prefixes: Collection[str] | Mapping[str, str], run_dir: RunDir) -> None:
    """Loads values of another run into the agent, unless its own run has a checkpoint.

    Args:
      agent: the run's agent.
      checkpoint: the other run's directory, its checkpoints' directory, or the path prefix of one; None for none.
      prefixes: see `warm_start.load`.
      run_dir: this run's directory.

    Raises:
      ValueError: if the checkpoint is a URL, cannot be read, or does not fit.
    """
    if checkpoint is None:
        return
    local_path(checkpoint, 'initial_checkpoint')
    if steps := CheckpointFiles(run_dir.checkpoints, 1, None).steps():
        logging.info('loaded nothing from %s: this run continues from its own train step %d', checkpoint, steps[-1])
        return
    of_a_run = RunDir(checkpoint).checkpoints
    objects = {'agent': agent, 'train_step': agent.train_step_counter}
    warm_start.load(of_a_run if of_a_run.is_dir() else checkpoint, objects, prefixes)


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
