"""Example: what tests and benchmarks need to make a small agent of an algorithm.

An algorithm is a module with `make_agent`, `EXPERIENCE` and `EXAMPLE`, by which they find it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.networks.networks import NetworkOptions

ANY_ACTION = ('discrete', 'continuous', 'multi-discrete', 'nested')


@dataclasses.dataclass(frozen=True)
class Example:
    """A small agent, which trains in seconds and learns nothing.

    Attributes:
      actions: the kinds of actions that the algorithm learns, of `ANY_ACTION`. All that learn an integer take a mask
        if `make_agent` has `action_mask`.
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
