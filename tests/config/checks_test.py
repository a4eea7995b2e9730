"""What a parameter needs, by its annotation."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pytest

from tflearn.config import checks, reader


@dataclasses.dataclass
class Settings:
    """Settings of a job."""

    number: int = 3


class Factory(Protocol):
    """Makes a number."""

    def __call__(self, number: int) -> int:
        """Makes one."""


FUNCTION = reader.Reference('', 'a.b', False)
RESULT = reader.Reference('', 'a.b', True)
NEEDED = {
    (Callable[[int], int], 3): 'a function, such as @module.function',
    (Callable[[int], int] | None, 'a'): 'a function, such as @module.function or None',
    (Factory, 1j): 'a function, such as @module.function',
    (Factory, FUNCTION): None,
    (Factory, RESULT): None,
    (Callable[[int], int] | None, None): None,
    (Settings, 3): '@Settings()',
    (Settings, FUNCTION): '@Settings()',
    (Settings, RESULT): None,
    (Settings | None, None): None,
    (Settings | Callable[[int], int], FUNCTION): None,
    (float | None, 3): None,
    (Any, 3): None,
    (Mapping[str, int] | Settings, 'a'): None,
    ('Settings', 3): None,
}


@pytest.mark.parametrize(('annotation', 'value'), NEEDED, ids=str)
def test_functions_and_settings_are_no_numbers(annotation, value):
    parameter = inspect.Parameter('given', inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    assert checks._wrong_type(parameter, value) == NEEDED[annotation, value]
