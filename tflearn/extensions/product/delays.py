"""How long outcomes take, by action: so that a training set may have decisions whose windows are open.

Outcomes that come early are not like the others: kept as they are, they bias rewards up. Inverse probability of
censoring weights correct that, of the delays of decisions whose windows are closed (O. Chapelle, Modeling Delayed
Feedback in Display Advertising, KDD 2014; J. Robins and A. Rotnitzky, 1992). They hold where the delay depends on the
action, and on nothing else: so they are no evidence, and only for training.
"""

import numpy as np

_LEAST_SHARE = 0.1  # of outcomes that have come by an age: below it decisions of this age are left out


class Delays:
    """The delays of first outcomes, by action, of decisions whose windows are closed."""

    def __init__(self, actions: np.ndarray, delays: np.ndarray):
        """Takes the action of each decision, and after which time its outcome came, infinite if none did [N]."""
        order = np.lexsort((delays, actions))
        self._actions, self._delays = actions[order], delays[order]

    def weights(self, actions: np.ndarray, ages: np.ndarray, have_outcomes: np.ndarray) -> np.ndarray:
        """Returns the weights of decisions whose windows are open, float64 [N]; 0 for those that are left out.

        With F the share of an action's outcomes that come by an age, and p the share of its decisions that get one, a
        decision weighs 1 / F if its outcome has come, else (1 - p) / (1 - p F): the probability that none will come.
        """
        weights = np.zeros(len(actions))
        for action in np.unique(actions):
            mine = actions == action
            begin, end = np.searchsorted(self._actions, action), np.searchsorted(self._actions, action, 'right')
            delays = self._delays[begin:end]
            having = int(np.count_nonzero(np.isfinite(delays)))
            come = np.searchsorted(delays[:having], ages[mine], 'right')
            is_known = come > _LEAST_SHARE * having
            come = np.maximum(come, 1)
            none = (end - begin - having) / np.maximum(end - begin - come, 1)
            weights[mine] = np.where(is_known, np.where(have_outcomes[mine], having / come, none), 0.0)
        return weights
