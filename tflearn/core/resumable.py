"""Resumable: the state of an object besides its variables, for resumed runs of one process.
Needs no TensorFlow.

So that the worker processes of environments, which import it, start quickly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class Resumable:
    """An object whose content can be pickled, and taken over by an object that was made with the same arguments."""

    _KEPT: ClassVar[tuple[str, ...]] = ()  # the names of the attributes that are its content
    _parts: Sequence['Resumable'] = ()  # whose content is its own too

    def content(self) -> dict[str, Any]:
        """Returns what it holds now; to be pickled before it changes."""
        own = {name: getattr(self, name) for name in self._KEPT}
        return own | ({'parts': [part.content() for part in self._parts]} if self._parts else {})

    def set_content(self, content: Mapping[str, Any]) -> None:
        """Takes over what `content` of another object returned."""
        for name in self._KEPT:
            setattr(self, name, content[name])
        for part, own in zip(self._parts, content.get('parts', ()), strict=True):
            part.set_content(own)
