"""Resumable: the state of an object besides its variables, for resumed runs of one process.
Needs no TensorFlow.

So that the worker processes of environments, which import it, start quickly.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class Resumable:
    """An object whose content can be pickled, and taken over by an object that was made with the same arguments."""

    _KEPT: ClassVar[tuple[str, ...]] = ()  # the names of the attributes that are its content

    def content(self) -> dict[str, Any]:
        """Returns what it holds now; to be pickled before it changes."""
        return {name: getattr(self, name) for name in self._KEPT}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """Takes over what `content` of another object returned."""
        for name in self._KEPT:
            setattr(self, name, content[name])
