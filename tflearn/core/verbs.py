"""What a verb of the command `tflearn` is: `tflearn compare`.
Each extension has those that it brings in its `cli`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Verb(NamedTuple):
    """A verb that is no job; the docstring of its function begins --help.

    Attributes:
      run: gets the flags, and the other arguments one by one; returns the exit status.
      groups: the groups of flags in flags.toml.
      required: the flags that have to be given.
      arguments: the other arguments: '' for none, 'RUN' for one, '[RUN]' for one or none, 'RUN ...' for
        one or more.
    """

    run: Callable[..., int]
    groups: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    arguments: str = ''


def values_of(flags: Any, *names: str) -> dict[str, Any]:
    """Returns the values of flags by their names."""
    return {name: getattr(flags, name) for name in names}
