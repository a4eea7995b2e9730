"""The previous action and reward as inputs of networks with memory: two options of `NetworkOptions`.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (ICLR),
section 2.3; Espeholt et al. 2018, "IMPALA" (arXiv 1802.01561), figure 3. They are further parts of
the observation that the agent sees, and zeros in an episode's first step. An integer is one-hot, a
float is that of the agent, in [-1, 1].

While a policy acts, its state has the action of the step before, and the time step has the reward.
What the networks saw is stored in the policy info if `Slicing.store_policy_state` has the memory's
state stored too. Otherwise sequences begin with zeros, as the state does, and the rows have the
rest.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.agents.parts import Problem
from tflearn.core.action_mask import ActionMask, mask_of
from tflearn.core.agent_data import WrappedAgent, WrappingPolicy
from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent, EnvironmentSpecs, integer_bounds
from tflearn.networks import encoder, recurrent
from tflearn.networks.networks import NetworkOptions

PREVIOUS = 'previous'  # a key of the policy info: what the networks saw
ACTION, REWARD = 'previous_action', 'previous_reward'  # parts of the observation; the first also of the policy state


class PreviousStep:
    """Adds the previous action, the previous reward, or both to observations.

    Attributes:
      specs: the specs of the environment.
      inputs: the specs of what is added, by name.
      action_spec: the spec of an encoded action, float32 [n].
    """

    def __init__(self, specs: EnvironmentSpecs, network: NetworkOptions):
        """Checks the names of a dictionary of observations; raises ValueError for one of `ACTION` or `REWARD`."""
        self.specs = specs
        self._encoders = [_encoder(leaf) for leaf in tf.nest.flatten(specs.action)]
        size = sum(sum(layer.sizes) if layer else leaf.shape.num_elements() for layer, leaf in self._pairs())
        self.action_spec = tf.TensorSpec((size,), tf.float32, ACTION)
        reward = tf.TensorSpec(specs.reward.shape, tf.float32, REWARD)
        used = {ACTION: network.previous_action, REWARD: network.previous_reward}
        self.inputs = {name: spec for name, spec in ((ACTION, self.action_spec), (REWARD, reward)) if used[name]}
        self._is_dict = isinstance(specs.observation, Mapping)
        if self._is_dict and (both := self.inputs.keys() & specs.observation.keys()):
            raise UserValueError(
                f'got NetworkOptions.{min(both)}=True for an observation that has {min(both)!r}; need one of them; '
                'remove the option, or rename the part'
            )

    def _pairs(self) -> Any:
        return zip(self._encoders, tf.nest.flatten(self.specs.action), strict=True)

    def joined(self, observation: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an observation, or its spec, with what is added to it."""
        return {**(observation if self._is_dict else {'observation': observation}), **inputs}

    def encoded(self, action: Any, outer_shape: tf.Tensor) -> tf.Tensor:
        """Returns actions, a nest of [..., *spec], as float32 [..., n]; `outer_shape` is that in front."""
        parts = []
        for (layer, spec), leaf in zip(self._pairs(), tf.nest.flatten(action), strict=True):
            rows = layer(leaf) if layer else tf.reshape(leaf, [-1, spec.shape.num_elements()])
            parts.append(tf.cast(rows, tf.float32))
        return tf.reshape(tf.concat(parts, axis=-1), tf.concat([outer_shape, self.action_spec.shape], axis=0))

    def of_step(self, time_step: ts.TimeStep, action: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what is added to the observation of time steps [B], after encoded actions [B, n]."""
        return self._within_episodes(action, time_step.reward, time_step.is_first())

    def of_rows(self, experience: Any) -> dict[str, tf.Tensor]:
        """Returns what is added to the observations of a Trajectory [B, T, ...]; zeros in the first rows."""
        action = self.encoded(experience.action, tf.shape(experience.step_type))
        late = lambda each: tf.concat([tf.zeros_like(each[:, :1]), each[:, :-1]], axis=1)  # noqa: E731
        return self._within_episodes(late(action), late(experience.reward), experience.is_first())

    def _within_episodes(self, action: tf.Tensor, reward: tf.Tensor, is_first: tf.Tensor) -> dict[str, tf.Tensor]:
        found = {ACTION: action, REWARD: tf.cast(reward, tf.float32)}
        return {name: tf.where(_like(is_first, found[name]), 0.0, found[name]) for name in self.inputs}

    def policy(self, policy: tf_policy.TFPolicy, stores: bool = False) -> tf_policy.TFPolicy:
        """Returns `policy` for the environment's observations; a greedy one remains a greedy policy of another one."""
        if isinstance(policy, greedy_policy.GreedyPolicy):
            return greedy_policy.GreedyPolicy(self.policy(policy.wrapped_policy, stores))
        return PreviousPolicy(policy, self, stores)


def _encoder(spec: types.TensorSpec) -> encoder.OneHot | None:
    """Returns the layer of integers with bounds; None for numbers."""
    bounds = integer_bounds(spec)
    if bounds is None:
        return None
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in bounds)
    return encoder.OneHot([int(each) for each in low], [int(each) for each in high - low + 1])


def _like(is_first: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns it with as many dimensions as the values."""
    missing = values.shape.rank - is_first.shape.rank
    return tf.reshape(is_first, tf.concat([tf.shape(is_first), [1] * missing], axis=0)) if missing else is_first


class PreviousPolicy(WrappingPolicy, tf_policy.TFPolicy):
    """Adds the previous action and reward to observations, then asks another policy.

    Its state is `policy`, that of the other one, and `previous_action`. Of `distribution` the next
    state has the mode as the action, which a greedy policy takes.

    Attributes:
      takes_reward: whether the reward of a time step matters.
    """

    def __init__(self, policy: tf_policy.TFPolicy, previous: PreviousStep, stores: bool):
        """
        Args:
          policy: the policy that sees them.
          previous: adds them.
          stores: whether the policy info has what was seen.
        """
        mask, info_spec = mask_of(policy), policy.info_spec
        super().__init__(
            previous.specs.time_step,
            policy.action_spec,
            policy_state_spec={'policy': policy.policy_state_spec, ACTION: previous.action_spec},
            info_spec={**(info_spec or {}), PREVIOUS: previous.inputs} if stores else info_spec,
            clip=False,
            emit_log_probability=policy.emit_log_probability,
            observation_and_action_constraint_splitter=mask and ActionMask(previous.specs, mask.path),
            name=policy.name,
        )
        self.takes_reward = REWARD in previous.inputs
        self._wrap(policy, previous, stores)

    def _get_initial_state(self, batch_size: types.Int) -> Any:
        state = self._wrapped_policy.get_initial_state(batch_size)
        return {**super()._get_initial_state(batch_size), 'policy': state}

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        inputs, seen = self._seen(time_step, policy_state)
        step = self._wrapped_policy.action(seen, policy_state['policy'], seed)
        return self._after(time_step, step, step.action, inputs)

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        inputs, seen = self._seen(time_step, policy_state)
        step = self._wrapped_policy.distribution(seen, policy_state['policy'])
        return self._after(time_step, step, [each.mode() for each in tf.nest.flatten(step.action)], inputs)

    def _seen(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[dict[str, tf.Tensor], ts.TimeStep]:
        previous, _ = self._parts()
        inputs = previous.of_step(time_step, policy_state[ACTION])
        return inputs, time_step._replace(observation=previous.joined(time_step.observation, inputs))

    def _after(
        self, time_step: ts.TimeStep, step: policy_step.PolicyStep, action: Any, inputs: Any
    ) -> policy_step.PolicyStep:
        previous, stores = self._parts()
        encoded = previous.encoded(action, tf.shape(time_step.step_type))
        info = {**(step.info or {}), PREVIOUS: inputs} if stores else step.info
        return step._replace(state={'policy': step.state, ACTION: encoded}, info=info)


class PreviousAgent(WrappedAgent):
    """An agent that sees the previous action and reward; see the module."""

    def __init__(self, agent: Agent, previous: PreviousStep, stores: bool):
        """
        Args:
          agent: the agent, which sees them.
          previous: adds them.
          stores: whether they are stored.
        """
        policies = previous.policy(agent.policy), previous.policy(agent.collect_policy, stores)
        super().__init__(agent, *policies, 'previous_agent')
        self.train_sequence_length = getattr(agent, 'train_sequence_length', None)
        # In a function, since TensorFlow would wrap lists and dictionaries in attributes.
        self._previous = lambda: (previous, stores)

    @property
    def collect_data_spec(self) -> Any:
        """See `WrappedAgent`."""
        (previous, stores), spec = self._previous(), self._agent.collect_data_spec
        info = {**(spec.policy_info or {}), PREVIOUS: previous.inputs} if stores else spec.policy_info
        return spec._replace(observation=previous.specs.observation, policy_info=info)

    def convert(self, experience: Any) -> tuple[Any, Any]:
        """See `WrappedAgent`."""
        (previous, stores), info = self._previous(), experience.policy_info
        if stores:
            inputs, info = info[PREVIOUS], {name: each for name, each in info.items() if name != PREVIOUS}
            info[recurrent.POLICY_STATE] = info[recurrent.POLICY_STATE]['policy']
        else:
            inputs = previous.of_rows(experience)
        return experience._replace(observation=previous.joined(experience.observation, inputs), policy_info=info), None


def made(problem: Problem, make: Callable[[Problem], Agent]) -> Agent:
    """Returns an agent that `make` makes, which sees the previous action and reward if the network's options say so.

    Raises:
      ValueError: if its policy has no memory; see `PreviousStep`.
    """
    network = problem.network
    if not (network.previous_action or network.previous_reward):
        return make(problem)
    previous = PreviousStep(problem.specs, network)
    specs = problem.specs
    seen = EnvironmentSpecs(previous.joined(specs.observation, previous.inputs), specs.action, specs.reward)
    agent = make(problem._replace(specs=seen))
    if not tf.nest.flatten(agent.policy.policy_state_spec):
        raise UserValueError(
            f'got NetworkOptions.{" and ".join(previous.inputs)} with a network without memory; need one with memory: '
            'set lstm_size'
        )
    return PreviousAgent(agent, previous, problem.experience.slicing.store_policy_state)
