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


def subsampled(units: Units, kept: float, rare: int, least: float = 0.0) -> Units:
    """Returns units of a log that drops a part of them at random. What is dropped is one more kind of units, on which
    nothing is bet.

    Args:
      units: of the whole log.
      kept: the share that is kept of all units but the rare ones, which are all kept.
      rare: 1 if the rare ones are those whose reward is above `least`; 0: whose cost is, 1 less the reward.
      least: see `rare`.
    """
    above, below = (units.ends[end].values for end in (1 - rare, rare))
    shares = np.where(above > least * (above + below), 1.0, kept)
    bets = np.append(shares.min() / shares, 0.0)
    of = lambda each: Variable(np.append(each.values, 0.0), each.bound, shares=bets)  # noqa: E731
    squares = min(float(units.chances @ (each.values**2 / shares)) for each in units.variables[1:])
    return dataclasses.replace(
        units,
        chances=np.append(units.chances * shares, units.chances @ (1 - shares)),
        variables=[of(each) for each in units.variables],
        refuters=[[of(each) for each in group] for group in units.refuters],
        variance=squares - units.difference**2,
        ends=[of(each) for each in units.ends],
    )
