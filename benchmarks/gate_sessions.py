"""Simulated worlds of several decisions: sessions, and slates, whose slots are the steps."""

import itertools
from typing import Literal

import numpy as np

from benchmarks.gate_units import Units, variance
from tflearn.core import confidence_sequences as cs
from tflearn.core.confidence_sequences import Variable


def sessions(length: int, difference: float, epsilon: float = 0.5, rate: float = 0.5) -> Units:
    """Returns sessions of two actions, whose reward at the end depends on the first; the candidate differs in that."""
    changed = rate + difference * length / (1 - epsilon)
    taken = np.array(list(itertools.product((0, 1), repeat=length)))
    log = np.array([1 - epsilon / 2, epsilon / 2])
    ratios = np.ones(taken.shape)
    ratios[:, 0] = (log[::-1] / log)[taken[:, 0]]
    rates = np.where(taken[:, 0] == 1, changed, rate)
    rewards = np.zeros((2 * len(taken), length))
    rewards[len(taken) :, -1] = 1.0
    chances = np.tile(log[taken].prod(axis=1), 2) * np.r_[1 - rates, rates]
    return _episodes(chances, np.tile(ratios, (2, 1)), rewards)


def _episodes(chances: np.ndarray, ratios: np.ndarray, rewards: np.ndarray) -> Units:
    """Returns the kinds of episodes that the incumbent has logged.

    Args:
      chances: of each kind, [J].
      ratios: of the candidate's probabilities to the logged ones in each step, [J, H]; 1 after the end of an episode.
      rewards: [J, H].
    """
    weights, ones = ratios.cumprod(axis=1), np.ones(rewards.shape)
    variables = cs.difference(weights, ones, rewards, ones[0], None)
    plain = ((weights - 1) * rewards).mean(axis=1)
    refuters = [[Variable(weights[:, -1] - 1, 1.0)]]
    ends = [Variable((weights * of).mean(axis=1), 0.0) for of in (rewards, 1 - rewards)]
    value = float(chances @ ends[0].values)
    return Units(chances, variables, refuters, float(chances @ plain), variance(chances, plain), value, ends)


def slates(seen: Literal['slots', 'stop', 'slate'], difference: float, slots: int = 2, epsilon: float = 0.2) -> Units:
    """Returns clicks on ranked articles: each slot has another one of `slots` + 2.

    Args:
      seen: each slot's click; the first one, with which the reader stops; or only whether the slate was clicked.
      difference: the candidate's value less the incumbent's, which made the log; the value is the mean over the steps.
      slots: S.
      epsilon: of both, in each slot among the articles that are left.
    """
    rng, size = np.random.default_rng(7), slots + 2
    worth, opinions = rng.uniform(0.15, 0.25, (3, size, 1)) * 0.8 ** np.arange(slots), rng.normal(size=(2, 3, size))
    rankings = np.array(list(itertools.permutations(range(size), slots)))
    chances = np.zeros((2, 3, len(rankings), slots))  # of each policy, reader and ranking, given the slots before
    for policy, reader, row, slot in np.ndindex(*chances.shape):
        left = np.setdiff1d(np.arange(size), rankings[row, :slot])
        is_best = rankings[row, slot] == left[opinions[policy, reader, left].argmax()]
        chances[policy, reader, row, slot] = (1 - epsilon) * is_best + epsilon / len(left)
    whole, clicked = chances.prod(axis=3), np.array(list(itertools.product((0, 1), repeat=slots)))
    lean = np.zeros(worth.shape)
    for row, slot in np.ndindex(*rankings.shape):
        lean[:, rankings[row, slot], slot] += whole[0, :, row] - whole[1, :, row]
    before = clicked.cumsum(axis=1) - clicked  # clicks in the slots before
    rewards = {'slots': clicked, 'stop': clicked * (before == 0), 'slate': clicked.max(axis=1, keepdims=True)}[seen]
    ratios = np.repeat((chances[0] / chances[1])[:, :, np.newaxis], len(clicked), axis=2)
    ratios = np.where(before > 0, 1.0, ratios) if seen == 'stop' else ratios
    ratios = ratios.prod(axis=3, keepdims=True) if seen == 'slate' else ratios
    shape = ratios.shape

    def made(extra: float) -> Units:
        rates = (worth + extra * lean)[:, rankings, np.arange(slots)][:, :, np.newaxis]
        assert rates.min() >= 0 and rates.max() <= 1
        of = whole[1][:, :, np.newaxis] / 3 * np.where(clicked, rates, 1 - rates).prod(axis=3)
        given = (each.reshape(-1, shape[3]) for each in (ratios, np.broadcast_to(rewards, shape).astype(float)))
        return _episodes(of.ravel(), *given)

    low, high = -0.15, 0.15
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if made(middle).difference < difference else (low, middle)
    return made(low)
