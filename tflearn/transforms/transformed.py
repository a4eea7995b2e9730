"""An agent of any algorithm whose observations and rewards are transformed.

Its policies take the environment's observations, so collectors, evaluations and exported policies need to know nothing
of the transforms. The replay holds what the environment made, once; batches are transformed when they are trained on.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.action_mask import mask_of
from tflearn.errors import UserValueError
from tflearn.experience import Experience, Queue
from tflearn.transforms.hindsight import Hindsight
from tflearn.transforms.pipeline import Pipeline
from tflearn.transforms.policy import transformed
from tflearn.transforms.transform import Transform
from tflearn.types import Agent, AgentFactory, EnvironmentSpecs


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    make_agent: AgentFactory,
    transforms: Sequence[Transform],
) -> Agent:
    """Makes the agent of another factory for transformed observations and rewards.

    Args:
      specs: the environment's specs.
      train_step: int64 scalar, counts gradient steps.
      experience: the run's experience settings.
      make_agent: makes the agent, for the transformed specs.
      transforms: the transforms, in this order. Those that compute rewards from the environment's observations come
        first.

    Raises:
      ValueError: if a transform does not fit the specs or stands at the wrong place, it needs other rows than items
        have, the transformed rewards are not one number, or `make_agent` refuses its arguments or makes an agent that
        changes sequences itself.
    """
    if isinstance(experience.replay, Queue) and any(isinstance(item, Hindsight) for item in transforms):
        raise UserValueError(
            f'got Hindsight with Experience.replay={experience.replay!r}; need Uniform or Prioritized, and an agent '
            'such as DQN or SAC: actions were not taken for the new goals'
        )
    pipeline = Pipeline(transforms, specs, experience.slicing)
    if pipeline.specs.reward.shape.rank:
        raise UserValueError(
            f'got the reward {pipeline.specs.reward} after all transforms; need one number; add rewards.Weighted'
        )
    agent = make_agent(pipeline.specs, train_step, experience)
    collected = agent.collect_data_spec
    if tf.nest.flatten(getattr(agent, 'training_data_spec', collected)) != tf.nest.flatten(collected):
        raise UserValueError(
            f'got a {type(agent).__name__}, which changes sequences before it trains on them; need an agent that '
            'trains on what its collect policy makes, such as those of tflearn.agents'
        )
    if mask := mask_of(agent.policy):
        pipeline.check_unchanged(mask.path)
    return (_PreparingAgent if hasattr(agent, 'prepare') else TransformedAgent)(agent, specs, pipeline)


class TransformedAgent(tf.Module):
    """An `Agent` that transforms what another one gets; see `make_agent`. Checkpoints hold that one as `_agent`.

    Attributes:
      extra_steps: the rows of an item before and after its sequence, which the transforms need.
      reward_weights: the weights of several rewards, float32 variable [n]; None if there is one reward.
    """

    def __init__(self, agent: Agent, specs: EnvironmentSpecs, pipeline: Pipeline):
        """
        Args:
          agent: the agent, for the transformed specs.
          specs: the environment's specs.
          pipeline: the transforms, made for `specs`.
        """
        super().__init__('transformed_agent')
        self._agent = agent
        self._statistics = pipeline.statistics
        self.policy = transformed(agent.policy, specs, pipeline)
        self.collect_policy = transformed(agent.collect_policy, specs, pipeline)
        self.train_step_counter = agent.train_step_counter
        self.extra_steps = pipeline.extra_steps
        self.reward_weights = pipeline.reward_weights
        # In functions, since TensorFlow would wrap lists and dictionaries in attributes.
        self._pipeline = lambda: pipeline
        self._specs = lambda: specs

    @property
    def collect_data_spec(self) -> Any:
        """The spec of a Trajectory as the environment and the collect policy make it."""
        specs = self._specs()
        return self._agent.collect_data_spec._replace(observation=specs.observation, reward=specs.time_step.reward)

    @property
    def training_data_spec(self) -> Any:
        """The same: batches are transformed by `train` and `loss`."""
        return self.collect_data_spec

    def initialize(self) -> Any:
        """Prepares the first train step."""
        return self._agent.initialize()

    def train(self, experience: Any, weights: tf.Tensor | None = None) -> Any:
        """Takes one gradient step on a Trajectory [B, T, ...]; then updates the transforms' statistics by it."""
        if not isinstance(experience, trajectory.Trajectory):  # samples of `prepare`
            return self._agent.train(experience, weights)
        after, before = self._pipeline().transform_experience(experience)
        info = self._agent.train(after, weights)
        self._pipeline().update(before)
        return info

    def loss(self, experience: Any, weights: tf.Tensor | None = None) -> Any:
        """Returns the LossInfo without an update."""
        if isinstance(experience, trajectory.Trajectory):
            experience, _ = self._pipeline().transform_experience(experience)
        return self._agent.loss(experience, weights)


class _PreparingAgent(TransformedAgent):
    """One of an algorithm that takes several steps on the same sequences (PPO)."""

    @property
    def trains_on_sequences(self) -> bool:
        """Whether minibatches have to be of complete sequences."""
        return getattr(self._agent, 'trains_on_sequences', False)

    def prepare(self, experience: Any) -> tuple[Any, tf.Tensor]:
        """Computes samples of new sequences, once, and updates the statistics by them; see the agent's own."""
        after, before = self._pipeline().transform_experience(experience)
        prepared = self._agent.prepare(after)  # type: ignore[attr-defined]
        self._pipeline().update(before)
        return prepared
