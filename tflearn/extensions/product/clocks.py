"""Clocks that are wrong: outcomes whose times do not fit those of their decisions, by the files of both."""

import collections
from collections.abc import Sequence

import numpy as np

_LEAST, _SHARE = 10, 0.05  # outcomes of a file for the decisions of another one that are doubted
_ZONE_SECS = 1500.0  # zones differ by half an hour and more
_MOST_NAMED = 3  # pairs of files of each kind


class Clocks:
    """Counts outcomes that came before their decisions, or after their windows."""

    def __init__(self, outcomes: Sequence[str], decisions: Sequence[str]):
        """Takes the names of the files of both."""
        self._outcomes, self._decisions = outcomes, decisions
        # By the numbers of both files: how many there are, those that are early and late, and the sums of their delays.
        self._found = collections.defaultdict[tuple[int, int], np.ndarray](lambda: np.zeros(5))
        self._early: list[np.ndarray] = []

    def add(self, outcomes: np.ndarray, decisions: np.ndarray, delays: np.ndarray, window_secs: float) -> None:
        """Takes the files of outcomes and of their decisions, and the seconds between both, all [N]."""
        pairs, of = np.unique(outcomes * len(self._decisions) + decisions, return_inverse=True)
        early, late = delays < 0, delays > window_secs
        self._early.append(-delays[early])
        weights = None, early, late, np.where(early, -delays, 0.0), np.where(late, delays, 0.0)
        sums = [np.bincount(of, each, len(pairs)) for each in weights]
        for pair, row in zip(pairs.tolist(), np.transpose(sums), strict=True):
            self._found[divmod(pair, len(self._decisions))] += row

    def clear(self) -> None:
        """Forgets what was counted."""
        self._found.clear()
        self._early.clear()

    def warnings(self) -> list[str]:
        """Returns what is to be doubted, the most of each kind first."""
        early, late = self._doubted(1), self._doubted(2)
        found = [f'{each}; these decisions have no known reward' for each in early]
        secs = np.concatenate(self._early or [np.zeros(0)])
        if len(secs) and not early:
            middle = float(np.median(secs))
            what = 'time zone' if middle > _ZONE_SECS else 'clock'
            found.append(
                f'{len(secs)} outcomes are {secs.min():.0f} to {secs.max():.0f} s before their decisions (median '
                f'{middle:.0f}), as by one writer with a wrong {what}; these decisions have no known reward'
            )
        found += [f'{each}; if it is right, a longer --window_secs counts these outcomes' for each in late]
        return found

    def _doubted(self, kind: int) -> list[str]:
        doubted = [each for each in self._found.items() if each[1][kind] >= max(_LEAST, _SHARE * each[1][0])]
        doubted.sort(key=lambda each: (-each[1][kind], each[0]))
        what = (None, 'before their decisions', 'later than --window_secs after their decisions')[kind]
        return [
            f'{row[kind]:.0f} of {row[0]:.0f} outcomes of {self._outcomes[outcome]} are {what} in '
            f'{self._decisions[decision]}, on average by {row[kind + 2] / row[kind]:.0f} s: if the clock of one '
            'of both is wrong, correct its times, and join again'
            for (outcome, decision), row in doubted[:_MOST_NAMED]
        ]
