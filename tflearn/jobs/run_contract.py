"""The contract of a run: what all of its jobs must agree on, which the coordinator compares."""

import dataclasses
import re
from typing import Any

from tflearn.coordinator import published_weights
from tflearn.core.agent_data import WrappedAgent, innermost
from tflearn.core.experience import Experience
from tflearn.core.types import Agent
from tflearn.policies.variables import published_variables
from tflearn.replay.storage import Storage, signature_text

_AGREED = ('gamma', 'reward_scale', 'n_step')
_ADDRESS = re.compile(r' at 0x[0-9a-f]+')


def contract(agent: Agent, storage: Storage, num_shards: int | None = None) -> dict[str, Any]:
    """Returns the contract of a job; `num_shards` is None if the job does not know it."""
    variables = published_variables(agent.collect_policy)
    signature = {key: signature_text(spec) for key, spec in storage.signature.items()}
    return published_weights.contract(variables, signature, agreed_settings(agent, storage.experience), num_shards)


def agreed_settings(agent: Agent, experience: Experience) -> dict[str, str]:
    """Returns the settings by name: the agent's discounts and rewards, its transforms,
    and how steps are stored.

    The size of a batch is the learner's alone.
    """
    settings = {
        f'Experience.{part}.{field.name}': _ADDRESS.sub('', repr(getattr(value, field.name)))
        for part, value in (('slicing', experience.slicing), ('replay', experience.replay))
        for field in dataclasses.fields(value)
    }
    settings['Experience.replay'] = type(experience.replay).__name__
    inner = innermost(agent)
    if isinstance(agent, WrappedAgent) and agent.description:
        settings['transforms'] = agent.description
    holders = [inner, *(value for value in vars(inner).values() if dataclasses.is_dataclass(value))]
    for name in _AGREED:
        values = [getattr(holder, key) for holder in holders for key in (name, f'_{name}') if hasattr(holder, key)]
        if values and isinstance(values[0], int | float):
            settings[name] = repr(values[0])
    return settings
