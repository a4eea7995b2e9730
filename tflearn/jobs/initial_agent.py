"""A run's agent, made for its environment, and how its experience is stored."""

from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.actors.actor import with_policy_state
from tflearn.core import agent_data, strategies
from tflearn.core import precision as precisions
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import Agent, AgentFactory, EnvironmentSpecs
from tflearn.policies import signatures
from tflearn.replay.storage import Storage


def make(
    make_agent: AgentFactory,
    specs: EnvironmentSpecs,
    experience: Experience,
    strategy: tf.distribute.Strategy,
    precision: str,
) -> Agent:
    """Makes the agent and its train step in the strategy, and logs the devices that train.

    Raises:
      TypeError: if the factory returns no agent.
      ValueError: if the agent cannot train on such data, two parts of the observation or action
        would be exported under one name, or no part of the agent computes in `precision`.
    """
    nests = {'observation': specs.observation, 'action': specs.action}
    # The names of an export's tensors, checked before there is one.
    signatures.flat_dict(signatures.to_plain(nests))
    logging.info(strategies.describe_devices(strategy))
    with strategy.scope(), precisions.use(precision):
        train_step = create_train_step()
        agent = make_agent(specs, train_step, experience)
        agent_data.check(agent, train_step, experience)
        if not agent_data.is_packaged(agent):
            agent_data.make_policy_variables(agent)
            agent_data.check_counting(agent)
    precisions.check_agent(agent, precision)
    return agent


def make_for_data(make_agent: AgentFactory, specs: EnvironmentSpecs, experience: Experience) -> tuple[Agent, Storage]:
    """Makes an agent that does not train, for its policies and its data;
    returns it and how its data are stored.

    Raises:
      ValueError: see `data_spec`.
    """
    agent = make_agent(specs, create_train_step(), experience)
    return agent, storage(agent, experience)


def storage(agent: Agent, experience: Experience) -> Storage:
    """Returns how the experience of an agent is stored; raises ValueError as `data_spec` does."""
    return Storage(experience, data_spec(agent, experience))


def data_spec(agent: Agent, experience: Experience) -> types.NestedTensorSpec:
    """Returns the spec of a Trajectory in the replay:
    the agent's, with the policy state if it is stored.

    Args:
      agent: the run's agent.
      experience: the run's experience settings.

    Raises:
      ValueError: if the policy state should be stored, but there is none or the policy info cannot
        hold it; or if items have rows that no transform of the agent needs.
    """
    slicing, needed = experience.slicing, getattr(agent, 'extra_steps', (0, 0))
    if (slicing.history_steps, slicing.future_steps) != needed:
        raise UserValueError(
            f'got Slicing.history_steps={slicing.history_steps}, future_steps={slicing.future_steps}; need '
            f'{needed[0]} and {needed[1]}, as the transforms of the agent do'
        )
    spec: Any = agent.collect_data_spec
    if not experience.slicing.store_policy_state:
        return spec
    return spec.replace(policy_info=with_policy_state(spec.policy_info, agent.collect_policy.policy_state_spec))
