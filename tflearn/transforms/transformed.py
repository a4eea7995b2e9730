"""An agent of any algorithm whose observations and rewards are transformed.

Its policies take the environment's observations, so collectors, evaluations and exported policies
need to know nothing of the transforms. The replay holds what the environment made, once; batches
are transformed when they are trained on.
"""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core import summary_tensors
from tflearn.core.action_mask import ActionMask, mask_of
from tflearn.core.agent_data import WrappedAgent, WrappingPolicy
from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.experience import Experience, Slicing
from tflearn.core.types import Agent, AgentFactory, EnvironmentSpecs, check_agent, check_agent_factory
from tflearn.transforms import rewards
from tflearn.transforms.hindsight import Hindsight
from tflearn.transforms.transform import ObservationTransform, Transform


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
      transforms: the transforms, in this order. Those that compute rewards from the environment's
        observations come first.

    Raises:
      ValueError: if a transform does not fit the specs or stands at the wrong place, it needs other
        rows than items have, the transformed rewards are not one number, or `make_agent` refuses
        its arguments or makes an agent that changes sequences itself.
    """
    if not experience.replay.learns_from_old_items and any(isinstance(item, Hindsight) for item in transforms):
        raise UserValueError(
            f'got Hindsight with Experience.replay={experience.replay!r}; need Uniform or Prioritized, and an agent '
            'such as DQN or SAC: actions were not taken for the new goals'
        )
    pipeline = Pipeline(transforms, specs, experience.slicing, experience.replay.samples_per_insert or 1.0)
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
      reward_weights: the weights of several rewards, float32 variable [n]; None if there is one
        reward.
      description: the transforms and their numbers, in one line.
    """

    def __init__(self, agent: Agent, specs: EnvironmentSpecs, pipeline: 'Pipeline'):
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
        """See `WrappedAgent`. A summary has the rewards of both sides,
        `data/reward` and `data/transformed_reward`.
        """
        converted = self._pipeline().transform_experience(experience)
        summary_tensors.histogram('data/transformed_reward', converted[0].reward)
        return converted

    def after_train(self, converted: Any) -> None:
        """Updates the transforms' statistics."""
        self._pipeline().update(converted)


class TransformedPolicy(WrappingPolicy, tf_policy.TFPolicy):
    """Transforms time steps, then asks another policy.

    If a transform keeps something between two steps, such as the newest frames, the policy state is
    a dictionary of 'transforms' and 'policy', the other policy's state; else it is the latter.
    """

    def __init__(self, policy: tf_policy.TFPolicy, specs: EnvironmentSpecs, pipeline: 'Pipeline'):
        """
        Args:
          policy: the policy, for transformed specs.
          specs: the environment's specs.
          pipeline: the transforms, made for `specs`.
        """
        mask = mask_of(policy)
        state_spec = policy.policy_state_spec
        if pipeline.state_spec:
            state_spec = {'transforms': pipeline.state_spec, 'policy': state_spec}
        super().__init__(
            specs.time_step,
            policy.action_spec,
            policy_state_spec=state_spec,
            info_spec=policy.info_spec,
            clip=False,
            emit_log_probability=policy.emit_log_probability,
            observation_and_action_constraint_splitter=mask and ActionMask(specs, mask.path),
            name=policy.name,
        )
        self._wrap(policy, specs, pipeline)
        # An attribute, so that it is one of `variables()`.
        self._transforms_variables = pipeline.variables

    def _get_initial_state(self, batch_size: types.Int) -> Any:
        state = self._wrapped_policy.get_initial_state(batch_size)
        if not self._parts()[1].state_spec:
            return state
        return {'transforms': super()._get_initial_state(batch_size)['transforms'], 'policy': state}

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        time_step, states, policy_state = self._transform(time_step, policy_state)
        return self._with_states(self._wrapped_policy.action(time_step, policy_state, seed), states)

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        time_step, states, policy_state = self._transform(time_step, policy_state)
        return self._with_states(self._wrapped_policy.distribution(time_step, policy_state), states)

    def _transform(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[ts.TimeStep, Any, Any]:
        _, pipeline = self._parts()
        states: Any = ()
        if pipeline.state_spec:
            states, policy_state = policy_state['transforms'], policy_state['policy']
        time_step, states = pipeline.transform_time_step(time_step, states)
        return time_step, states, policy_state

    def _with_states(self, step: policy_step.PolicyStep, states: Any) -> policy_step.PolicyStep:
        if not self._parts()[1].state_spec:
            return step
        return step._replace(state={'transforms': states, 'policy': step.state})


def transformed(policy: tf_policy.TFPolicy, specs: EnvironmentSpecs, pipeline: 'Pipeline') -> tf_policy.TFPolicy:
    """Returns `policy` for the environment's observations;
    a greedy one remains a greedy policy of another one.
    """
    if isinstance(policy, greedy_policy.GreedyPolicy):
        return greedy_policy.GreedyPolicy(transformed(policy.wrapped_policy, specs, pipeline))
    return TransformedPolicy(policy, specs, pipeline)


class Pipeline:
    """A run's transforms, made for the environment's specs; applies them in their order.

    Attributes:
      specs: the transformed specs, which the agent gets.
      state_spec: what the transforms keep between two steps of an episode while a policy acts; ()
        if nothing.
      statistics: the modules with the transforms' variables, in their order.
      extra_steps: the rows before and after a sequence that the transforms need in training, and
        remove.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        specs: EnvironmentSpecs,
        slicing: Slicing,
        samples_per_insert: float = 1.0,
    ):
        """Prepares copies of the transforms, in the strategy's scope.

        Args:
          transforms: the transforms.
          specs: the environment's specs.
          slicing: how steps become items.
          samples_per_insert: how often the agent trains on an item, on average.

        Raises:
          ValueError: if a transform does not fit what the one before it returns, or stands behind
            one that it has to precede, or items have other rows than the transforms need.
        """
        _check(transforms)
        _check_rows(transforms, slicing)
        self._sequence_length = slicing.sequence_length
        self.extra_steps = (slicing.history_steps, slicing.future_steps)
        self._transforms = [copy.copy(transform) for transform in transforms]
        for transform in self._transforms:
            transform.draws_per_step = samples_per_insert * (slicing.sequence_length - 1) / slicing.stride
            specs = transform.transform_specs(specs)
        self.specs = specs
        states = tuple(transform.state_spec for transform in self._transforms)
        self.state_spec: types.NestedTensorSpec = states if tf.nest.flatten(states) else ()
        self.statistics = [transform.statistics for transform in self._transforms if transform.statistics is not None]

    @property
    def description(self) -> str:
        """The transforms and their numbers, in one line."""
        return ', '.join(map(_described, self._transforms))

    @property
    def reward_weights(self) -> tf.Variable | None:
        """The weights of several rewards; None if there are none."""
        return next((item.weights for item in self._transforms if isinstance(item, rewards.Weighted)), None)

    @property
    def variables(self) -> list[tf.Variable]:
        """The transforms' variables that policies use."""
        return [variable for transform in self._transforms for variable in transform.policy_variables]

    def transform_time_step(self, time_step: ts.TimeStep, states: Any) -> tuple[ts.TimeStep, Any]:
        """Returns transformed time steps [B] and the next states, of states [B, *state_spec]."""
        states = states or ((),) * len(self._transforms)
        after = []
        for transform, state in zip(self._transforms, states, strict=True):
            time_step, state = transform.transform_time_step(time_step, state)
            after.append(state)
        return time_step, tuple(after) if self.state_spec else ()

    def transform_experience(self, experience: Any) -> tuple[Any, list[Any]]:
        """Transforms a Trajectory [B, T, ...]. Returns it, and what each transform got,
        for `update`.
        """
        before = []
        for transform in self._transforms:
            before.append(experience)
            experience = transform.transform_experience(experience)
        return experience, before

    def update(self, before: Sequence[Any]) -> None:
        """Updates the transforms' statistics, in replica context,
        by what `transform_experience` returned.
        """
        for transform, experience in zip(self._transforms, before, strict=True):
            if transform.statistics is not None:
                transform.update(experience, self._counts(experience))

    def _counts(self, experience: Any) -> tf.Tensor:
        """Returns float32 [B, T]: 1 for steps that the agent trained on,
        0 in between episodes and in other rows.
        """
        counts = tf.cast(experience.next_step_type != ts.StepType.FIRST, tf.float32)
        end = experience.next_step_type.shape[1] - 1
        begin = end + 1 - self._sequence_length
        return tf.pad(counts[:, begin:end], [[0, 0], [begin, 1]])

    def check_unchanged(self, path: str) -> None:
        """Raises ValueError if a transform changes the part of the observation at `path`,
        the mask of legal actions.
        """
        for transform in self._transforms:
            if isinstance(transform, ObservationTransform) and path in transform.changed_paths:
                name = type(transform).__name__
                raise UserValueError(
                    f"got {name} of '{path}', the mask of legal actions; need the mask as it is; set {name}.paths"
                )


def _check(transforms: Sequence[Transform]) -> None:
    if not transforms or isinstance(transforms, Transform):
        raise UserValueError(f'got transforms={transforms!r}; need a list of one or more')
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise UserTypeError(
                f'got {transform!r} in transforms; need objects of tflearn.transforms, such as image.Scale()'
            )
    for before, after in itertools.pairwise(transforms):
        if after.stage < before.stage:
            name, other = type(after).__name__, type(before).__name__
            raise UserValueError(
                f'got {name} after {other} in transforms; need it before, since it computes rewards from what the '
                f'environment made; move {name} to the front'
            )


def _check_rows(transforms: Sequence[Transform], slicing: Slicing) -> None:
    for name in ('history_steps', 'future_steps'):
        needed, given = sum(getattr(transform, name) for transform in transforms), getattr(slicing, name)
        if needed != given:
            names = [type(transform).__name__ for transform in transforms if getattr(transform, name)]
            raise UserValueError(
                f'got Slicing.{name}={given}; need {needed}, as {", ".join(names) or "no transform"} does; set '
                f'Slicing.{name}={needed}'
            )
    if slicing.history_steps and slicing.store_policy_state:
        raise UserValueError(
            f'got Slicing.history_steps={slicing.history_steps} with store_policy_state=True; need a network with '
            'memory or a stack of frames, not both'
        )


def _described(transform: Transform) -> str:
    # Of the experience, not of the transform: draws_per_step.
    own = {name: value for name, value in vars(transform).items() if name != 'draws_per_step'}
    values = {name.lstrip('_'): value for name, value in own.items() if isinstance(value, int | float | str)}
    return f'{type(transform).__name__}({", ".join(f"{name}={value!r}" for name, value in values.items())})'
