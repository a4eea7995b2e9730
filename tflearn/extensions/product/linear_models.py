"""What is linear in features of states and actions: values by fitted Q evaluation, and an estimated behaviour policy.

Le, Voloshin and Yue 2019, "Batch Policy Learning under Constraints", arXiv 1903.08738, algorithm 3, with k steps left:

    Q_k = argmin over linear functions of sum (Q(s_t, a_t) - r_t - gamma d_t C_{k-1}(s_{t+1}))^2 + ridge |theta|^2
    V_k(s) = sum over a of pi(a | s) Q_k(s, a)
    C_k(s) = V_k(s), clipped to what k rewards of the data's range can sum up to;  C_0 = 0

d_t is 0 after a termination. The paper iterates to the fixed point; here as many times as an episode has steps, so that
the value is that of episodes with a time limit, for any gamma. A truncation is no end then: the next value counts.
Only the targets of the regression and the estimate of the value are clipped: a doubly robust estimate is unbiased only
if V is the mean of Q exactly.
N is the number of rows, S the number of states, D the number of features.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_probability as tfp

from tflearn.core.errors import UserValueError

_SETTLED = 1e-9  # the change of the values, relative to their size, after which they are those of any more steps
_WIDTHS = (0.5, 1.0, 2.0)
_NUM_PAIRS = 2000
MAX_INPUTS = 1000  # numbers of an observation; images need a network
_MIN_DEVIATION = 1e-3
_NUM_STEPS = 200
_SETTLED_PROBABILITY = 1e-6  # the greatest change of a probability


@dataclasses.dataclass(frozen=True)
class Regression:
    """Several ridge regressions on the same features, whatever the policy whose values they fit.

    Attributes:
      features: of the actions that were taken, [N, D].
      weights: how often each row counts in each of W fits, [N, W].
      ridge: the penalty of the parameters, relative to the mean square of the features.
    """

    features: np.ndarray
    weights: np.ndarray
    ridge: float = 1e-6

    @functools.cached_property
    def _inverses(self) -> np.ndarray:  # [W, D, D]
        return np.stack([_inverse(self.features, column, self.ridge) for column in self.weights.T])

    def parameters(self, targets: np.ndarray) -> np.ndarray:
        """Returns the parameters of each fit, [D, W], to targets [N, W]."""
        return np.einsum('wde,ew->dw', self._inverses, self.features.T @ (self.weights * targets))


@dataclasses.dataclass(frozen=True)
class Rows:
    """Steps and what the evaluated policy does in each state, in the order of the episodes.

    Attributes:
      state_features: the mean over the evaluated policy's actions in each state, [S, D].
      states: the index of each row's state, [N].
      next_states: the index of the state after it; any one after a termination, [N].
      rewards: [N].
      discounts: gamma d_t, [N].
    """

    state_features: np.ndarray
    states: np.ndarray
    next_states: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray


def fit(
    regression: Regression, rows: Rows, num_steps: int, steps_left: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fits several Q functions, each to the rows that have a weight for it, and computes the values of all rows.

    Args:
      regression: the features of the rows, and which of them each of W fits has.
      rows: the data.
      num_steps: the number of steps for which values are fitted.
      steps_left: the number of steps that are left in each state, [S], from 0 to `num_steps`.
      gamma: the discount, for the range of the values.

    Returns:
      (q, v, c): Q of each row [N, W], with the steps that are left in its state; V and C of each state [S, W].
    """
    low, high = min(0.0, rows.rewards.min()), max(0.0, rows.rewards.max())
    (num_rows, size), num_fits = regression.features.shape, regression.weights.shape[1]
    q_values, values = np.zeros((num_rows, num_fits)), np.zeros((len(steps_left), num_fits))
    clipped, means, current = np.zeros(values.shape), np.zeros(values.shape), np.zeros(values.shape)
    theta = np.zeros((size, num_fits))
    rewards, discounts = rows.rewards[:, np.newaxis], rows.discounts[:, np.newaxis]
    settled, largest = False, 0.0  # the largest sum of k discounts
    for k in range(1, num_steps + 1):
        if not settled:
            targets = rewards + discounts * current[rows.next_states]
            theta = regression.parameters(targets)
            largest = 1.0 + gamma * largest
            means = rows.state_features @ theta
            before, current = current, np.clip(means, low * largest, high * largest)
            settled = gamma < 1 and bool(np.abs(current - before).max() <= _SETTLED * np.abs(current).max())
        here = steps_left == k
        values[here], clipped[here] = means[here], current[here]
        here = here[rows.states]
        q_values[here] = regression.features[here] @ theta
    return q_values, values, clipped


def _inverse(features: np.ndarray, weights: np.ndarray, ridge: float) -> np.ndarray:
    """Returns the inverse of the normal matrix of a ridge regression, [D, D]."""
    normal = features.T @ (features * weights[:, np.newaxis])
    normal[np.diag_indices_from(normal)] += ridge * max(np.trace(normal) / len(normal), 1e-12)
    return np.asarray(np.linalg.inv(normal))


def features_of(inputs: np.ndarray, num_features: int, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a map from rows of numbers to features: 1, the numbers, and random Fourier features of them.

    Rahimi and Recht 2007, "Random Features for Large-Scale Kernel Machines": cos(w x + b) with normal w approximate a
    Gaussian kernel. Its width is the median distance of the data (the median heuristic), times 0.5, 1 or 2.

    Args:
      inputs: [N, I], one row for each state, or for each state and action; scales are chosen by them.
      num_features: the number of features, D; at least I + 1.
      seed: the seed of the random frequencies.

    Returns:
      A function of inputs [N, I] that returns their features [N, D], float64.

    Raises:
      ValueError: if there are fewer features than numbers, or more than `MAX_INPUTS` numbers.
    """
    num_inputs = inputs.shape[1]
    if num_inputs > MAX_INPUTS:
        raise UserValueError(
            f'got observations of {num_inputs} numbers; need at most {MAX_INPUTS} to fit values; images are not '
            'supported'
        )
    if num_features < num_inputs + 1:
        raise UserValueError(
            f'got num_features={num_features} for {num_inputs} numbers; need at least {num_inputs + 1}'
        )
    random = np.random.default_rng(seed)
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1.0), 0.0)
    scaled = (inputs - mean) * scale
    pairs = random.integers(0, len(inputs), (2, _NUM_PAIRS))
    distances = np.linalg.norm(scaled[pairs[0]] - scaled[pairs[1]], axis=1)
    distances = distances[distances > 0]
    width = np.median(distances) if distances.size else 1.0
    num_random = num_features - num_inputs - 1
    frequencies = random.normal(size=(num_inputs, num_random)) / (width * np.resize(_WIDTHS, num_random))
    phases = random.uniform(0, 2 * np.pi, num_random)

    def features(inputs: np.ndarray) -> np.ndarray:
        scaled = (inputs - mean) * scale
        return np.concatenate([np.ones((len(inputs), 1)), scaled, np.cos(scaled @ frequencies + phases)], axis=1)

    return features


def by_choice(features: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Returns features of states and choices, each choice with parameters of its own.

    Args:
      features: of states, [N, D].
      probabilities: of the choices, or 1 for the one that was taken, [N, A].

    Returns:
      The mean over choices, [N, A * D].
    """
    return (probabilities[:, :, np.newaxis] * features[:, np.newaxis, :]).reshape(len(features), -1)


def log_probabilities_of_choices(
    features: np.ndarray, choices: np.ndarray, num_choices: int, weights: np.ndarray | float = 1.0
) -> np.ndarray:
    """Returns log mu(a | s) of a behaviour policy that was not recorded, by multinomial logistic regression.

    Hanna, Niekum and Stone 2019, "Importance Sampling Policy Evaluation with an Estimated Behavior Policy", arXiv
    1806.01347: the policy is estimated on the same data, which often makes the estimates more exact.

    Newton's method with a bound of the Hessian (Böhning 1992, "Multinomial Logistic Regression Algorithm"), by which
    the likelihood rises in every step, and no step size is needed.

    Args:
      features: of states, [N, D].
      choices: the choices that were taken, counted from 0, [N].
      num_choices: A.
      weights: how often each row counts, [N].

    Returns:
      float64 [N].
    """
    taken = np.eye(num_choices)[choices]
    theta = np.zeros((features.shape[1], num_choices))
    counted = features * np.reshape(weights, (-1, 1))
    normal = counted.T @ features
    penalty = 1e-3 * np.trace(normal) / len(normal)
    normal[np.diag_indices_from(normal)] += penalty
    inverse = np.linalg.inv(normal)
    probabilities = np.full(taken.shape, 1 / num_choices)
    for _ in range(_NUM_STEPS):
        theta += 2 * inverse @ (counted.T @ (taken - probabilities) - 0.5 * penalty * theta)
        logits = features @ theta
        before, probabilities = probabilities, np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        if np.abs(probabilities - before).max() < _SETTLED_PROBABILITY:
            break
    return np.asarray(np.log(np.take_along_axis(probabilities, choices[:, np.newaxis], axis=1)[:, 0]))


def log_densities(
    features: np.ndarray,
    actions: np.ndarray,
    bounds: tuple[Any, Any] = (-np.inf, np.inf),
    weights: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Returns the log-densities of real actions under normal distributions with linear means.

    Where an action is a bound, it is the log-probability of the tail beyond it, which the environment clips. The
    likelihood with such tails is that of Tobin 1958, "Estimation of Relationships for Limited Dependent Variables",
    here increased by expectation maximization.

    Args:
      features: of states, [N, D].
      actions: [N, K], within the bounds.
      bounds: the least and the greatest of each number, [K].
      weights: how often each row counts, [N].

    Returns:
      float64 [N], the sum over the numbers of an action.
    """
    # 1 at the upper bound, -1 at the lower one; the tail beyond it is an upper one after a change of sign.
    side = (actions >= bounds[1]).astype(float) - (actions <= bounds[0])
    counts = np.broadcast_to(weights, len(features))[:, np.newaxis]
    counted = features * counts
    normal = counted.T @ features
    normal[np.diag_indices_from(normal)] += 1e-6 * np.trace(normal) / len(normal)
    fit = np.linalg.solve(normal, counted.T)
    standard = tfp.distributions.Normal(np.float64(0), np.float64(1))
    expected, variance, deviation = actions, np.zeros(actions.shape), np.ones(actions.shape[1])
    for _ in range(_NUM_STEPS):
        mean: np.ndarray = features @ (fit @ expected)
        before, deviation = (
            deviation,
            np.sqrt((counts * ((expected - mean) ** 2 + variance)).mean(axis=0) / counts.mean()),
        )
        deviation = np.maximum(deviation, _MIN_DEVIATION)
        scaled = (actions - mean) / deviation
        tail = standard.log_survival_function(side * scaled).numpy()
        if not side.any() or np.abs(deviation / before - 1).max() < _SETTLED_PROBABILITY:
            break
        hazard = np.where(side != 0, np.exp(standard.log_prob(scaled).numpy() - tail), 0.0)
        expected = np.where(side != 0, mean + deviation * side * hazard, actions)
        variance = np.where(side != 0, deviation**2 * (1 + side * scaled * hazard - hazard**2), 0.0)
    density = standard.log_prob(scaled).numpy() - np.log(deviation)
    return np.asarray(np.where(side != 0, tail, density).sum(axis=1))
