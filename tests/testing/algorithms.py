"""All algorithms, by the examples in their modules: a new one is in every test and benchmark of "every agent"."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.agents import example_data
from tests.testing import experiences
from tflearn import agents
from tflearn.agents.algorithm import Example
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import Agent, EnvironmentSpecs


class Algorithm(NamedTuple):
    """An algorithm: its module, and the example of it there."""

    name: str
    module: ModuleType
    example: Example

    @property
    def is_variant(self) -> bool:
        """Whether it is another algorithm with other settings."""
        return self.module.__name__.rpartition('.')[2] != self.name

    @property
    def experience(self) -> Experience:
        """Its own, with items of as many rows as the example's."""
        own, length = self.module.EXPERIENCE, self.example.sequence_length
        return experiences.changed(own, sequence_length=length, stride=length - 1) if length else own

    @property
    def length(self) -> int:
        """Rows of an item."""
        return self.experience.slicing.sequence_length

    @property
    def specs(self) -> EnvironmentSpecs:
        """A vector of floats, and a discrete action if it learns one."""
        return example_data.DISCRETE if 'discrete' in self.example.actions else example_data.CONTINUOUS

    @property
    def arguments(self) -> dict[str, Any]:
        """The example's arguments of `make_agent`."""
        network = self.example.network
        return {**self.example.settings, **({} if network is None else {'network': network})}

    def default(self, argument: str) -> Any:
        """Returns the default of an argument of `make_agent`; None also if it has no such argument."""
        parameter = inspect.signature(self.module.make_agent).parameters.get(argument)
        return parameter and parameter.default

    def takes(self, argument: str) -> bool:
        """Returns whether `make_agent` has an argument."""
        return argument in inspect.signature(self.module.make_agent).parameters

    def make(
        self,
        specs: EnvironmentSpecs | None = None,
        experience: Experience | None = None,
        layers: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Agent:
        """Makes an agent of the example's arguments and `changes`; `layers` change fields of its network."""
        arguments = {**self.arguments, **changes}
        if layers:
            arguments['network'] = dataclasses.replace(arguments['network'], **layers)
        chosen = (specs or self.specs, create_train_step(), experience or self.experience)
        agent = self.module.make_agent(*chosen, **arguments)
        agent.initialize()
        return agent


def _found() -> dict[str, Algorithm]:
    found = {}
    for item in pkgutil.iter_modules(agents.__path__):
        module = importlib.import_module(f'{agents.__name__}.{item.name}')
        if hasattr(module, 'EXAMPLE'):
            example = module.EXAMPLE
            found[item.name] = Algorithm(item.name, module, example)
            for name, changes in example.variants.items():
                found[name] = Algorithm(name, module, dataclasses.replace(example, variants={}, **changes))
    return found


ALGORITHMS = _found()


def names(*fast: str, **wanted: str) -> list[Any]:
    """Returns the names of algorithms as test parameters; all but the `fast` ones are slow tests.

    Args:
      *fast: names; without any, no test is slow.
      **wanted: `action`, `data` or `argument`, which the algorithms are to have.
    """
    chosen = [
        name
        for name, each in ALGORITHMS.items()
        if wanted.get('action') in (None, *each.example.actions)
        and wanted.get('data') in (None, *each.example.data)
        and ('argument' not in wanted or each.takes(wanted['argument']))
    ]
    return [name if not fast or name in fast else pytest.param(name, marks=pytest.mark.slow) for name in chosen]
