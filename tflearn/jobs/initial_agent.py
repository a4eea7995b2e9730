"""The agent that a run begins with: made for its environment, with the values of another run if so wished."""

from collections.abc import Collection, Mapping

import tensorflow as tf
from absl import logging

from tflearn.experience import Agent, AgentFactory, Experience
from tflearn.learner import initial_load, strategies
from tflearn.learner import precision as precisions
from tflearn.learner.checkpoint_files import CheckpointFiles
from tflearn.run_dir import RunDir, local_path
from tflearn.specs import EnvironmentSpecs
from tflearn.steps import create_train_step


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
      prefixes: see `initial_load.load`.
      run_dir: of this run.

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
    initial_load.load(of_a_run if of_a_run.is_dir() else checkpoint, objects, prefixes)
