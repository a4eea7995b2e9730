"""WrappedAgent: an agent that changes the data of another one before that trains on them."""

from typing import Any

import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.core.types import Agent


class WrappedAgent(tf.Module):
    """An `Agent` that trains another one. Checkpoints hold that one as `_agent`.

    Subclasses override `collect_data_spec`, `convert`, and `after_train` if they learn from the data too. Samples of an
    agent's `prepare`, which it has if the other one has it (PPO), are converted once, when they are made.
    """

    def __init__(self, agent: Agent, policy: Any, collect_policy: Any, name: str):
        """
        Args:
          agent: the agent that trains.
          policy: its policy, as the environment needs it.
          collect_policy: its collect policy, as the environment needs it.
          name: the module's name.
        """
        super().__init__(name)
        self._agent = agent
        self.policy, self.collect_policy = policy, collect_policy
        self.train_step_counter = agent.train_step_counter
        self.trains_on_sequences: bool = getattr(agent, 'trains_on_sequences', False)
        if hasattr(agent, 'prepare'):
            self.prepare = self._prepare

    @property
    def collect_data_spec(self) -> Any:
        """The spec of a Trajectory as the environment and the collect policy make it."""
        return self._agent.collect_data_spec

    @property
    def training_data_spec(self) -> Any:
        """The same: `train` and `loss` convert batches."""
        return self.collect_data_spec

    def convert(self, experience: Any) -> tuple[Any, Any]:
        """Returns a Trajectory [B, T, ...] as the other agent trains on it, and what `after_train` gets."""
        return experience, None

    def after_train(self, converted: Any) -> None:
        """Is called after a train step, and after `prepare`, with what `convert` returned."""

    def post_process_policy(self) -> Any:
        """Returns the policy for use, of the one that the other agent makes."""
        process = getattr(self._agent, 'post_process_policy', None)
        processed = process() if process else self._agent.policy
        same = processed is self._agent.policy or not hasattr(self.policy, 'with_wrapped')
        return self.policy if same else self.policy.with_wrapped(processed)

    def initialize(self) -> Any:
        """Prepares the first train step."""
        return self._agent.initialize()

    def train(self, experience: Any, weights: tf.Tensor | None = None) -> Any:
        """Takes one gradient step on a Trajectory [B, T, ...], or on samples of `prepare`."""
        if not isinstance(experience, trajectory.Trajectory):
            return self._agent.train(experience, weights)
        experience, converted = self.convert(experience)
        info = self._agent.train(experience, weights)
        self.after_train(converted)
        return info

    def loss(self, experience: Any, weights: tf.Tensor | None = None) -> Any:
        """Returns the LossInfo without an update."""
        if isinstance(experience, trajectory.Trajectory):
            experience, _ = self.convert(experience)
        return self._agent.loss(experience, weights)

    def _prepare(self, experience: Any) -> tuple[Any, tf.Tensor]:
        """Computes samples of new sequences, once; see the agent's own."""
        experience, converted = self.convert(experience)
        prepared = self._agent.prepare(experience)  # type: ignore[attr-defined]
        self.after_train(converted)
        return prepared
