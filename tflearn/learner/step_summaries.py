"""StepSummaries: summaries written inside a train step, in addition to those that the agent writes there."""

from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn import histograms
from tflearn.learner.batch_structure import flatten_with_names
from tflearn.learner.summaries import SummaryOptions
from tflearn.types import Agent


class StepSummaries:
    """Histograms of actions and of the data's age, from one replica's batch, which is a representative sample."""

    def __init__(self, agent: Agent, options: SummaryOptions):
        """Makes the variable for the newest policy version; within the strategy's scope."""
        self._agent, self._options = agent, options
        self._newest = tf.Variable(0, trainable=False, dtype=tf.int64, name='newest_policy_version')

    def prepare(self) -> None:
        """Updates the newest policy version; to be called before each step that is summarized."""
        if self._options.policy_version:
            self._newest.assign(self._options.policy_version())

    def __call__(self, data: Any, info: Any) -> None:
        """Writes the histograms, in replica context.

        Args:
          data: [B, T, ...]; only a Trajectory has actions.
          info: the data's own metrics.
        """
        step = self._agent.train_step_counter
        if self._options.actions and isinstance(data, trajectory.Trajectory):
            self._write_actions(data, step)
        if self._options.policy_version and 'policy_version' in info:
            with tf.name_scope('data/'):
                lag = self._newest.read_value() - tf.cast(info['policy_version'], tf.int64)
                histograms.write('policy_lag', lag, step)

    def _write_actions(self, data: trajectory.Trajectory, step: tf.Variable) -> None:
        first = tf.nest.map_structure(lambda column: column[:, 0], data)
        time_step = ts.TimeStep(first.step_type, first.reward, first.discount, first.observation)
        policy = self._agent.policy
        state = policy.get_initial_state(tf.shape(first.step_type)[0])
        actions = {'batch': data.action, 'policy': policy.action(time_step, state).action}
        with tf.name_scope('actions/'):
            for name, action in flatten_with_names(actions):
                histograms.write(name, action, step)
