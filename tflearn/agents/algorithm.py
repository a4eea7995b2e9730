"""What the module of an algorithm has: `make_agent`, made by `factory`; `EXPERIENCE`; and `EXAMPLE`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tflearn.agents import previous
from tflearn.agents.parts import Problem
from tflearn.agents.rescaled_actions import rescaled
from tflearn.core.experience import Experience
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

ANY_ACTION = ('discrete', 'continuous', 'multi-discrete', 'nested')


class Factory(Protocol):
    """`make_agent` of an algorithm."""

    def __call__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        *,
        network: NetworkOptions = NetworkOptions(),
        optimizer: OptimizerOptions = OptimizerOptions(),
        **settings: Any,
    ) -> Agent:
        """Makes an agent. What an algorithm's own docstring leaves out is as here.

        Args:
          specs: the environment's specs; see `encoder` for observations. Continuous actions need
            finite bounds.
          train_step: int64 scalar, counts gradient steps.
          experience: the experience. Agents that learn from old items take uniform or prioritized
            order, no queue.
          network: the layers between the observation and the last ones.
          optimizer: the optimizers of the agent's parts.
          **settings: those of the algorithm; these mean the same in all that have them.
          loss: the losses' settings.
          gamma: the discount per environment step, in [0, 1].
          reward_scale: the factor of the rewards.
          dueling: whether the last layer computes the observation's value and the actions'
            advantages (Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement
            Learning", arXiv 1511.06581).
          epsilon: the share of random actions in the collect policy, or a schedule of the train
            step.
          exploration_noise: the deviation of the collect policy's normal noise, as a share of half
            the range of each action; a number or a schedule of the train step.
          exploration_damping: the damping of that noise, which is 1 - damping times that of the
            step before, from 0 on in each episode, plus normal noise: an Ornstein-Uhlenbeck
            process, with 0.15 in the paper of DDPG; 1 is independent noise in each step.
          state_dependent_noise: how the collect policy explores by noise that depends on the
            observation, by weights that stay the same for some steps (gSDE, Raffin et al. 2021,
            arXiv 2005.05719), without memory; None draws again in each step.
          initial_deviation: of float actions in [-1, 1], which a normal distribution draws; None is
            0.35.
          target_update_tau: the weight of the trained networks in an update of their targets; 1
            copies them.
          target_update_period: train steps between two updates of the targets.
          normalize_observations: whether to normalize observations by the mean and variance of all
            so far, within +-5. Categories stay as they are, and so do, in a nest, images of bytes,
            other integers, and what has a layer of one's own.
          normalize_rewards: whether to divide rewards by the root mean square of all so far, or by
            a tenth of the largest so far if that is more, so that the order of returns stays.
          normalize_values: whether the value's last layer learns targets of mean 0 and deviation 1,
            whatever the unit of returns; see `pop_art`. Value errors and advantages are divided by
            the deviation.
          extra_loss: a function that computes a term of one's own in the loss, and its metrics; see
            `ExtraLoss`. None has none.
          action_mask: the path of the observation's part that marks legal actions, such as
            'action_mask'; see `ActionMask`. None has none.

        Raises:
          ValueError: if the algorithm cannot learn from such observations, actions or items, or
            settings do not fit together.
        """


def factory(make: Callable[..., Agent]) -> Factory:
    """Decorates the function that makes an agent of a `Problem` and of the algorithm's own settings.

    The problem gets what all algorithms take, unless it is among the own settings, as another
    default may be. Actions are rescaled; see `rescaled_actions`.
    """
    _, *own = inspect.signature(make).parameters.values()
    _, *common, _ = inspect.signature(Factory.__call__).parameters.values()
    of_problem = {each.name: each for each in common if each.name not in {setting.name for setting in own}}

    @functools.wraps(make)
    def make_agent(*given: Any, **arguments: Any) -> Agent:
        named = {name: arguments.pop(name) for name in of_problem.keys() & arguments.keys()}
        return previous.made(Problem(*given, **named), functools.partial(make, **arguments))

    del vars(make_agent)['__wrapped__']  # where gin would look for the settings
    vars(make_agent)['__signature__'] = inspect.Signature([*of_problem.values(), *own])
    return rescaled(make_agent)


@dataclasses.dataclass(frozen=True)
class Example:
    """A small agent, with which tests and benchmarks of every algorithm find it: it trains in seconds, learns nothing.

    Attributes:
      actions: the kinds of actions that the algorithm learns, of `ANY_ACTION`. All that learn an
        integer take a mask if `make_agent` has `action_mask`.
      data: where its items can come from: 'uniform', 'prioritized', 'queue', 'recorded'.
      network: the layers; None for an algorithm without networks.
      settings: further arguments of `make_agent`.
      sequence_length: rows of an item; None has as many as `EXPERIENCE`.
      variants: by name, what other algorithms of the module have instead.
    """

    actions: Sequence[str]
    data: Sequence[str] = ('uniform', 'prioritized', 'recorded')
    network: NetworkOptions | None = NetworkOptions((8,))
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
