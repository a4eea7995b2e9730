"""The agent that a run begins with: made for its environment, with the values of another run if so wished."""

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
from tflearn.experience import Experience
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
    """Makes the agent and its train step in the strategy `placement`, and logs which devices train.

    Raises:
      ValueError: if nothing of it computes in `precision`.
    """
    logging.info(strategies.describe_devices(placement))
    with placement.scope(), precisions.use(precision):
        agent = make_agent(specs, create_train_step(), experience)
    precisions.check_agent(agent, precision)
    return agent


def load(agent: Agent, checkpoint: str | None, prefixes: Collection[str] | Mapping[str, str], run_dir: RunDir) -> None:
    """Gives the agent values of another run, unless its own run has a checkpoint to go on from.

    Args:
      agent: of the run.
      checkpoint: of the other run: its directory, that of its checkpoints, or the path prefix of one; None for none.
      prefixes: see `warm_start.load`.
      run_dir: this run's directory.

    Raises:
      ValueError: if the checkpoint is a URL, cannot be read, or does not fit.
    """
    if checkpoint is None:
        return
    local_path(checkpoint, 'initial_checkpoint')
    if steps := CheckpointFiles(run_dir.checkpoints, 1, None).steps():
        logging.info('took nothing from %s: this run goes on from its own train step %d', checkpoint, steps[-1])
        return
    of_a_run = RunDir(checkpoint).checkpoints
    objects = {'agent': agent, 'train_step': agent.train_step_counter}
    warm_start.load(of_a_run if of_a_run.is_dir() else checkpoint, objects, prefixes)


def data_spec(agent: Agent, experience: Experience) -> types.NestedTensorSpec:
    """Returns the spec of a Trajectory in the replay: the agent's, and the policy state if that is to be stored.

    Args:
      agent: of the run.
      experience: the run's experience settings.

    Raises:
      ValueError: if the policy state is to be stored, and there is none or no room for it.
    """
    spec: Any = agent.collect_data_spec
    if not experience.store_policy_state:
        return spec
    return spec.replace(policy_info=stored_state.add(spec.policy_info, agent.collect_policy.policy_state_spec))
