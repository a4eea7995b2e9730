"""What a simulated log is drawn of: the kinds of its decisions, sessions or users, and what the gate makes of each."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tflearn.core.confidence_sequences import Variable


@dataclasses.dataclass(frozen=True)
class Units:
    """The kinds of units of a world, while it is as it is.

    Attributes:
      chances: of each kind, [J].
      variables: of the candidate's value less the incumbent's.
      refuters: groups of variables that refute the log; the bets of a group are averaged first.
      difference: the exact one.
      variance: of one unit in a test of fixed size.
      value: of the candidate, of a unit's step.
      ends: two variables; their means are at most the value, and at most 1 less the value.
      costs: of the candidate's negative cost, which is limited; () if none is.
    """

    chances: np.ndarray
    variables: Sequence[Variable]
    refuters: Sequence[Sequence[Variable]]
    difference: float
    variance: float
    value: float
    ends: Sequence[Variable]
    costs: Sequence[Variable] = ()


def variance(chances: np.ndarray, values: np.ndarray) -> float:
    """Returns the variance of values by their chances."""
    return float(chances @ values**2 - (chances @ values) ** 2)
