"""Fitted Q evaluation: the values of a policy's actions, linear in features of states and actions.

Le, Voloshin and Yue 2019, "Batch Policy Learning under Constraints", arXiv 1903.08738, algorithm 3, with k steps left:

    Q_k = argmin over linear functions of sum (Q(s_t, a_t) - r_t - gamma d_t V_{k-1}(s_{t+1}))^2 + ridge |theta|^2
    V_k(s) = sum over a of pi(a | s) Q_k(s, a), clipped to what k rewards of the data's range can sum up to;  V_0 = 0

d_t is 0 after a termination. The paper iterates to the fixed point; here as many times as an episode has steps, so that
the value is that of episodes with a time limit, for any gamma. A truncation is no end then: the next value counts.
N is the number of rows, S the number of states, D the number of features.
"""

import dataclasses

import numpy as np

_SETTLED = 1e-9  # the change of the values, relative to their size, after which they are those of any more steps


@dataclasses.dataclass(frozen=True)
class Rows:
    """Steps and states as features, in the order of the episodes.

    Attributes:
      features: of the actions that were taken, [N, D].
      state_features: the mean over the evaluated policy's actions in each state, [S, D].
      states: the index of each row's state, [N].
      next_states: the index of the state after it; any one after a termination, [N].
      rewards: [N].
      discounts: gamma d_t, [N].
    """

    features: np.ndarray
    state_features: np.ndarray
    states: np.ndarray
    next_states: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray


def fit(
    rows: Rows, weights: np.ndarray, num_steps: int, steps_left: np.ndarray, gamma: float, ridge: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """Fits several Q functions, each to the rows that have a weight for it, and computes the values of all rows.

    Args:
      rows: the data.
      weights: how often each row counts in each of W fits, [N, W].
      num_steps: the number of steps for which values are fitted.
      steps_left: the number of steps that are left in each state, [S], from 0 to `num_steps`.
      gamma: the discount, for the range of the values.
      ridge: the penalty of the parameters, relative to the mean square of the features.

    Returns:
      (q, v): q of each row [N, W], with the steps that are left in its state; v of each state [S, W].
    """
    inverses = np.stack([_inverse(rows.features, column, ridge) for column in weights.T])  # [W, D, D]
    low, high = min(0.0, rows.rewards.min()), max(0.0, rows.rewards.max())
    q_values, values = np.zeros(weights.shape), np.zeros((len(steps_left), weights.shape[1]))
    current, theta = np.zeros(values.shape), np.zeros((rows.features.shape[1], weights.shape[1]))
    rewards, discounts = rows.rewards[:, np.newaxis], rows.discounts[:, np.newaxis]
    settled, largest = False, 0.0  # the largest sum of k discounts
    for k in range(1, num_steps + 1):
        if not settled:
            targets = rewards + discounts * current[rows.next_states]
            theta = np.einsum('wde,ew->dw', inverses, rows.features.T @ (weights * targets))
            largest = 1.0 + gamma * largest
            before, current = current, np.clip(rows.state_features @ theta, low * largest, high * largest)
            settled = gamma < 1 and bool(np.abs(current - before).max() <= _SETTLED * np.abs(current).max())
        here = steps_left == k
        values[here] = current[here]
        here = here[rows.states]
        q_values[here] = np.clip(rows.features[here] @ theta, low * largest, high * largest)
    return q_values, values


def _inverse(features: np.ndarray, weights: np.ndarray, ridge: float) -> np.ndarray:
    """Returns the inverse of the normal matrix of a ridge regression, [D, D]."""
    normal = features.T @ (features * weights[:, np.newaxis])
    normal[np.diag_indices_from(normal)] += ridge * max(np.trace(normal) / len(normal), 1e-12)
    return np.asarray(np.linalg.inv(normal))
