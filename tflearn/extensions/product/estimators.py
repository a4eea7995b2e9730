"""Estimators of a policy's value from the episodes of another policy.

The value is the expected sum of rewards r_0 + gamma r_1 + ... over the first T steps of an episode. With the behaviour
policy mu, the evaluated policy pi, and rho_t = pi(a_t | s_t) / mu(a_t | s_t), an episode's weight after step t is

    w_t = rho_0 rho_1 ... rho_t

    importance sampling (IS)     mean over episodes of w_{T-1} G, with the episode's return G
    weighted IS                  sum of w_{T-1} G / sum of w_{T-1}
    per-decision IS              mean of sum_t gamma^t w_t r_t
    weighted per-decision IS     sum_t gamma^t (sum of w_t r_t / sum of w_t), sums over episodes at each t
    doubly robust (DR)           mean of V_0, with V_t = v(s_t) + rho_t (r_t + gamma V_{t+1} - q(s_t, a_t)), V_T = 0
    switch                       the same, with 0 in place of each rho_t above a limit; a limit of 0: the direct method

and where the steps are the slots of a slate, which both policies choose independently of each other,

    independent slots            mean of sum_t gamma^t rho_t r_t, if r_t depends on the item of its slot alone
    pseudo-inverse               mean of (1 + sum_t (rho_t - 1)) G, if the expected G is a sum over slots

The first three are those of Precup, Sutton and Singh 2000, "Eligibility Traces for Off-Policy Policy Evaluation". Their
weighted per-decision estimator is not consistent; the one above is (Thomas 2015, "Safe Reinforcement Learning"). The
last one is equation 10 of Jiang and Li 2016, "Doubly Robust Off-policy Value Evaluation for Reinforcement Learning",
arXiv 1511.03722; for its switch see Wang, Agarwal and Dudik 2017, arXiv 1612.01205. Independent slots are the
item-position model of Li et al. 2018, "Offline Evaluation of Ranking Policies with Click Models", arXiv 1804.10488; the
pseudo-inverse is that of Swaminathan et al. 2017, "Off-policy Evaluation for Slate Recommendation", arXiv 1605.04812,
whose matrix has the closed form above if slots are independent. `benchmarks/off_policy_peers.py` compares those of
episodes with other programs.

All numbers are float64. N is the number of episodes, T the number of steps of the longest.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, checked_dataclass

# Ratios are multiplied as sums of logarithms; greater ones would overflow.
_LARGEST_LOG_WEIGHT = 700.0
_WEIGHT_TOLERANCE, _WEIGHT_ERRORS = 0.05, 3.0  # of the mean weight, whose expectation is 1

# Number of times that each episode counts [B, N] -> estimates [B].
Estimator = Callable[[np.ndarray], np.ndarray]


@checked_dataclass(frozen=True)
class Episodes:
    """Episodes of the behaviour policy, padded at their ends.

    Attributes:
      rewards: [N, T]; 0 in the padding.
      log_ratios: log rho_t [N, T]; 0 in the padding. -inf where the evaluated policy never takes the action.
      gamma: the discount of the value, in [0, 1].
    """

    rewards: np.ndarray
    log_ratios: np.ndarray
    gamma: Fraction

    def __post_init__(self) -> None:
        if self.rewards.shape != self.log_ratios.shape or self.rewards.ndim != 2 or not self.rewards.size:
            raise UserValueError(
                f'got rewards {self.rewards.shape} and ratios {self.log_ratios.shape}; need two arrays [N, T]'
            )

    @property
    def discounts(self) -> np.ndarray:
        """gamma^t, [T]."""
        return self.gamma ** np.arange(self.rewards.shape[1])

    @property
    def returns(self) -> np.ndarray:
        """G, [N]."""
        return self.rewards @ self.discounts

    @property
    def log_weights(self) -> np.ndarray:
        """log w_t, [N, T]."""
        return np.minimum(np.cumsum(self.log_ratios, axis=1), _LARGEST_LOG_WEIGHT)


def effective_sample_size(log_weights: np.ndarray) -> float:
    """Returns (sum w)^2 / sum w^2: how many episodes of the evaluated policy the weights [N] are worth (Kong 1992)."""
    greatest = log_weights.max()
    if np.isneginf(greatest):
        return 0.0
    weights = np.exp(log_weights - greatest)
    return float(weights.sum() ** 2 / (weights**2).sum())


def mean_weight_is_one(episodes: Episodes, counts: np.ndarray | float = 1.0) -> bool:
    """Returns whether the mean weight of episodes that count so often [N] is 1, its expectation, but for chance."""
    weights = np.exp(episodes.log_weights[:, -1]) * counts / np.mean(counts)
    with np.errstate(over='ignore'):  # the square of a huge weight
        error = float(weights.std(ddof=1)) / math.sqrt(len(weights))
    return math.isfinite(error) and bool(abs(weights.mean() - 1) <= _WEIGHT_TOLERANCE + _WEIGHT_ERRORS * error)


def behaviour_value(episodes: Episodes) -> Estimator:
    """Returns the estimator of the behaviour policy's own value: the mean return."""
    return _mean(episodes.returns)


def importance_sampling(episodes: Episodes) -> Estimator:
    """Returns the estimator by ordinary importance sampling."""
    return _mean(np.exp(episodes.log_weights[:, -1]) * episodes.returns)


def weighted_importance_sampling(episodes: Episodes) -> Estimator:
    """Returns the estimator by weighted importance sampling; NaN where all weights are 0."""
    weights = scaled(episodes.log_weights[:, -1:])[:, 0]
    weighted = weights * episodes.returns
    return lambda counts: _ratio(counts @ weighted, counts @ weights)


def per_decision(episodes: Episodes) -> Estimator:
    """Returns the estimator by per-decision importance sampling."""
    return _mean((np.exp(episodes.log_weights) * episodes.rewards) @ episodes.discounts)


def weighted_per_decision(episodes: Episodes) -> Estimator:
    """Returns the estimator by weighted per-decision importance sampling; NaN where all weights of a step are 0."""
    weights = scaled(episodes.log_weights)
    weighted = weights * episodes.rewards
    return lambda counts: _ratio(counts @ weighted, counts @ weights) @ episodes.discounts


def independent_slots(episodes: Episodes) -> Estimator:
    """Returns the estimator for slates whose slots have rewards of their own."""
    return _mean((_ratios(episodes) * episodes.rewards) @ episodes.discounts)


def pseudo_inverse(episodes: Episodes) -> Estimator:
    """Returns the estimator for slates whose reward is a sum over slots, wherever it stands."""
    return _mean((1 + (_ratios(episodes) - 1).sum(axis=1)) * episodes.returns)


def _ratios(episodes: Episodes) -> np.ndarray:
    """Returns rho_t, [N, T]; 1 in the padding."""
    return np.exp(np.minimum(episodes.log_ratios, _LARGEST_LOG_WEIGHT))


def doubly_robust(
    episodes: Episodes, q_values: np.ndarray, values: np.ndarray, largest_ratio: float = math.inf
) -> Estimator:
    """Returns the doubly robust estimator.

    Args:
      episodes: the episodes.
      q_values: q(s_t, a_t) for the steps that are left at t, [N, T]; 0 in the padding.
      values: v(s_t), the same for the mean over the evaluated policy's actions, [N, T]; 0 in the padding.
      largest_ratio: greater rho_t count as 0: more bias, less variance.
    """
    ratios = _ratios(episodes)
    ratios = np.where(ratios <= largest_ratio, ratios, 0.0)
    total = np.zeros(len(ratios))
    for t in reversed(range(ratios.shape[1])):
        error = episodes.rewards[:, t] + episodes.gamma * total - q_values[:, t]
        total = values[:, t] + ratios[:, t] * error
    return _mean(total)


def _mean(values: np.ndarray) -> Estimator:
    return lambda counts: counts @ values / counts.sum(axis=1)


def scaled(log_weights: np.ndarray) -> np.ndarray:
    """Returns the weights [N, T] divided by the greatest of each column, which no ratio of sums depends on."""
    greatest = log_weights.max(axis=0)
    return np.exp(log_weights - np.where(np.isneginf(greatest), 0.0, greatest))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    with np.errstate(divide='ignore', invalid='ignore'):
        return np.asarray(numerator / denominator)


def finite(value: Any) -> Any:
    """Returns a nest for a JSON file: None for each float in it that is not finite."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
