"""Cloning: a run's first policy, trained on recorded episodes before the run's own training."""

from collections.abc import Callable

import tensorflow as tf
from absl import logging

from tflearn.core import agent_data, strategies
from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.core.waiting import Stopped
from tflearn.data.demonstrations import Cloning
from tflearn.files.run_dir import RunDir
from tflearn.jobs import initial_agent, initial_values
from tflearn.jobs.run import Run
from tflearn.learner import warm_start
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.sampling import recorded

_STEPS_PER_CALL = 200
_CHECKPOINT_STEPS = 1_000
_SUMMARIES = 50


def clone(
    agent: Agent,
    cloning: Cloning,
    specs: EnvironmentSpecs,
    run: Run,
    strategy: tf.distribute.Strategy,
    precision: str,
    seed: int,
    alive: Callable[[int], None],
) -> None:
    """Clones recorded episodes, and begins the agent with the policy.

    Checkpoints and summaries are in a directory of their own, from which a restarted job continues.

    Args:
      agent: the run's agent.
      cloning: what is cloned, and how.
      specs: the environment's specs.
      run: the run, whose `stop` ends the cloning.
      strategy: the strategy that the agent was made in, on one worker.
      precision: see `initial_agent.make`.
      seed: of the draws.
      alive: is called with the train step of the cloning about every few seconds.

    Raises:
      ValueError: if the data do not have what the agent needs, or the policies have other
        variables.
      Stopped: if the run is stopped.
    """
    layout = strategies.layout(strategy)
    if layout.workers > 1:
        raise UserValueError(f'got Initial.cloning on {layout.workers} workers; need one')
    experience = cloning.experience
    cloner = initial_agent.make(cloning.make_agent, specs, experience, strategy, precision)
    batch_size = experience.per_replica_batch_size * layout.replicas
    replay = recorded.loaded(cloning.dataset, initial_agent.storage(cloner, experience), batch_size, seed)
    options = LearnerOptions(
        checkpoint_interval_steps=_CHECKPOINT_STEPS,
        summaries=SummaryOptions(max(1, cloning.num_train_steps // _SUMMARIES)),
        loop=LoopOptions(preprocess=agent_data.preprocessing(cloner)),
        after_run=lambda _: alive(learner.step),
    )
    learner = Learner(cloner, replay, RunDir(run.dir.cloning), strategy=strategy, options=options)
    learner.train(StopConditions(cloning.num_train_steps), _STEPS_PER_CALL, stop=run.stop)
    if learner.step < cloning.num_train_steps:
        raise Stopped(f'stopped at train step {learner.step} of the cloning; its checkpoint is saved')
    logging.info('cloned recorded episodes in %d train steps', learner.step)
    warm_start.copy(
        initial_values.policy_variables(cloner), initial_values.policy_variables(agent), 'the cloned policy'
    )
