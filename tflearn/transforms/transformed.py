"""An agent of any algorithm whose observations and rewards are transformed.

Its policies take the environment's observations, so collectors, evaluations and exported policies need to know nothing
of the transforms. The replay holds what the environment made, once; batches are transformed when they are trained on.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Queue
from tflearn.core.types import Agent, AgentFactory, EnvironmentSpecs, check_agent, check_agent_factory
from tflearn.core.wrapped_agent import WrappedAgent
from tflearn.transforms.hindsight import Hindsight
from tflearn.transforms.pipeline import Pipeline
from tflearn.transforms.policy import transformed
from tflearn.transforms.transform import Transform


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
    check_agent_factory('transformed.make_agent.make_agent', make_agent)
    agent = make_agent(pipeline.specs, train_step, experience)
    check_agent(agent)
    collected = agent.collect_data_spec
    if tf.nest.flatten(getattr(agent, 'training_data_spec', collected)) != tf.nest.flatten(collected):
        raise UserValueError(
            f'got a {type(agent).__name__}, which changes sequences before it trains on them; need an agent that '
            'trains on what its collect policy makes, such as those of tflearn.agents'
        )
    if mask := mask_of(agent.policy):
        pipeline.check_unchanged(mask.path)
    return TransformedAgent(agent, specs, pipeline)


class TransformedAgent(WrappedAgent):
    """A `WrappedAgent` that transforms what another one gets; see `make_agent`.

    Attributes:
      extra_steps: the rows of an item before and after its sequence, which the transforms need.
      reward_weights: the weights of several rewards, float32 variable [n]; None if there is one reward.
      description: the transforms and their numbers, in one line.
    """

    def __init__(self, agent: Agent, specs: EnvironmentSpecs, pipeline: Pipeline):
        """
        Args:
          agent: the agent, for the transformed specs.
          specs: the environment's specs.
          pipeline: the transforms, made for `specs`.
        """
        policy, collect_policy = (transformed(own, specs, pipeline) for own in (agent.policy, agent.collect_policy))
        super().__init__(agent, policy, collect_policy, 'transformed_agent')
        self._statistics = pipeline.statistics
        self.extra_steps = pipeline.extra_steps
        self.reward_weights, self.description = pipeline.reward_weights, pipeline.description
        # In functions, since TensorFlow would wrap lists and dictionaries in attributes.
        self._pipeline = lambda: pipeline
        self._specs = lambda: specs

    @property
    def collect_data_spec(self) -> Any:
        """See `WrappedAgent`."""
        specs = self._specs()
        return self._agent.collect_data_spec._replace(observation=specs.observation, reward=specs.time_step.reward)

    def convert(self, experience: Any) -> tuple[Any, Any]:
        """See `WrappedAgent`."""
        return self._pipeline().transform_experience(experience)

    def after_train(self, converted: Any) -> None:
        """Updates the transforms' statistics."""
        self._pipeline().update(converted)
