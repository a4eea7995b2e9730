"""The settings that all jobs of a run must agree on and that no signature shows: the replay server holds them as text.

Signatures compare shapes and types. With another discount or another reward, everything would fit.
"""

import dataclasses
import json
import re
import threading
from typing import Any

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.types import Agent
from tflearn.core.waiting import wait_until
from tflearn.core.wrapped_agent import WrappedAgent
from tflearn.replay import connection
from tflearn.replay.tables import TableSpec
from tflearn.transforms.transformed import TransformedAgent

SETTINGS = 'settings'
_COLUMN = 'text'
_NAMES = ('gamma', 'reward_scale', 'n_step')
_ADDRESS = re.compile(r' at 0x[0-9a-f]+')
_MADE_SECS = 30.0


def table() -> TableSpec:
    """Returns the table of the settings, which holds one text."""
    return connection.text_table(SETTINGS, _COLUMN, max_size=1, max_times_sampled=0)


def of(agent: Agent, experience: Experience) -> dict[str, str]:
    """Returns the settings by name: the agent's discounts and rewards, its transforms, and how steps are stored.

    The size of a batch is the learner's alone.
    """
    settings = {
        f'Experience.{part}.{field.name}': _ADDRESS.sub('', repr(getattr(value, field.name)))
        for part, value in (('slicing', experience.slicing), ('replay', experience.replay))
        for field in dataclasses.fields(value)
    }
    settings['Experience.replay'] = type(experience.replay).__name__
    inner: Any = agent
    if isinstance(agent, TransformedAgent):
        settings['transforms'] = agent.description
    while isinstance(inner, WrappedAgent):
        inner = vars(inner)['_agent']
    holders = [inner, *(value for value in vars(inner).values() if dataclasses.is_dataclass(value))]
    for name in _NAMES:
        values = [getattr(holder, key) for holder in holders for key in (name, f'_{name}') if hasattr(holder, key)]
        if values and isinstance(values[0], int | float):
            settings[name] = repr(values[0])
    return settings


def publish(address: str, settings: dict[str, str]) -> None:
    """Lets the other jobs compare their settings with these; `address` is the own server's."""
    connection.send(address, SETTINGS, _COLUMN, json.dumps(settings))


def check(address: str, settings: dict[str, str], stop: threading.Event) -> None:
    """Compares a job's settings with those of the replay server at `address`, which answers; '' is none.

    Raises:
      ValueError: that names the first settings that differ, with both values.
    """
    tables = (connection.counts(address) or {}) if address else {}
    if SETTINGS not in tables:  # another program started the server
        return

    def size() -> int:
        return (connection.counts(address) or tables)[SETTINGS].size

    wait_until(size, f'the settings of the replay server at {address}', _MADE_SECS, stop)
    found = connection.sample(address, SETTINGS, 1)
    if not found:
        return
    theirs = json.loads(bytes(found[0][0].item()))
    differing = [
        f'{name}={settings[name]} (there {theirs[name]})'
        for name in sorted(settings.keys() & theirs.keys())
        if settings[name] != theirs[name]
    ]
    if differing:
        raise UserValueError(
            f'got {", ".join(differing[:3])} in a job whose replay server at {address} has others; need equal settings '
            'in all jobs of a run; start all with the same gin file'
        )
