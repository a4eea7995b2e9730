"""What a new run's agent begins with: values of another run or of an exported policy."""

import pathlib
from collections.abc import Collection, Mapping

import tensorflow as tf
from absl import logging

from tflearn.core.types import Agent
from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir, local_path
from tflearn.jobs.train_settings import Initial
from tflearn.learner import warm_start
from tflearn.policies import versions
from tflearn.policies.variables import published_variables


def continues(run_dir: RunDir) -> bool:
    """Returns whether the run has a checkpoint, so that it begins with nothing else."""
    return bool(CheckpointFiles(run_dir.checkpoints).numbers())


def load(agent: Agent, initial: Initial, run_dir: RunDir) -> None:
    """Loads values of another run or of an exported policy into the agent,
    unless its own run has a checkpoint.

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
    if continues(run_dir):
        logging.info('loaded nothing from %s: this run continues from its own checkpoint', source)
        return
    if initial.policy:
        warm_start.load_policy(versions.find(pathlib.Path(initial.policy)), policy_variables(agent))
        return
    _load_checkpoint(agent, initial, initial.prefixes)


def load_optimizers(agent: Agent, initial: Initial, run_dir: RunDir) -> None:
    """Loads values of another run's optimizers, unless the run has a checkpoint;
    once a learner has made their slots.

    Raises:
      ValueError: if they do not fit.
    """
    if initial.optimizers and not continues(run_dir):
        _load_checkpoint(agent, initial, initial.optimizers, optimizers=True)


def _load_checkpoint(
    agent: Agent, initial: Initial, prefixes: Collection[str] | Mapping[str, str], optimizers: bool = False
) -> None:
    checkpoint = str(initial.checkpoint)
    of_a_run = RunDir(checkpoint).checkpoints
    objects = {'agent': agent, 'train_step': agent.train_step_counter}
    warm_start.load(of_a_run if of_a_run.is_dir() else checkpoint, objects, prefixes, optimizers=optimizers)


def policy_variables(agent: Agent) -> list[tf.Variable]:
    """Returns the variables of both policies, each once."""
    policies = [agent.policy, agent.collect_policy]
    return list({variable.ref(): variable for policy in policies for variable in published_variables(policy)}.values())
