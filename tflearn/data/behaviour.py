"""Estimates a behaviour policy that was not recorded: from features of states, by maximum likelihood.

Hanna, Niekum and Stone 2019, "Importance Sampling Policy Evaluation with an Estimated Behavior Policy", arXiv
1806.01347: the policy is estimated on the same data, which often makes the estimates more exact.
"""

import numpy as np

_MIN_DEVIATION = 1e-3
_NUM_STEPS = 200
_SETTLED = 1e-6  # the greatest change of a probability


def log_probabilities_of_choices(features: np.ndarray, choices: np.ndarray, num_choices: int) -> np.ndarray:
    """Returns log mu(a | s) by multinomial logistic regression.

    Newton's method with a bound of the Hessian (Böhning 1992, "Multinomial Logistic Regression Algorithm"), by which
    the likelihood rises in every step, and no step size is needed.

    Args:
      features: of states, [N, D].
      choices: the choices that were taken, counted from 0, [N].
      num_choices: A.

    Returns:
      float64 [N].
    """
    taken = np.eye(num_choices)[choices]
    theta = np.zeros((features.shape[1], num_choices))
    normal = features.T @ features
    penalty = 1e-3 * np.trace(normal) / len(normal)
    normal[np.diag_indices_from(normal)] += penalty
    inverse = np.linalg.inv(normal)
    probabilities = np.full(taken.shape, 1 / num_choices)
    for _ in range(_NUM_STEPS):
        theta += 2 * inverse @ (features.T @ (taken - probabilities) - 0.5 * penalty * theta)
        logits = features @ theta
        before, probabilities = probabilities, np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        if np.abs(probabilities - before).max() < _SETTLED:
            break
    return np.asarray(np.log(np.take_along_axis(probabilities, choices[:, np.newaxis], axis=1)[:, 0]))


def log_densities(features: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Returns the log-densities of real actions under normal distributions with linear means.

    Args:
      features: of states, [N, D].
      actions: [N, K].

    Returns:
      float64 [N], the sum over the numbers of an action.
    """
    normal = features.T @ features
    normal[np.diag_indices_from(normal)] += 1e-6 * np.trace(normal) / len(normal)
    errors: np.ndarray = actions - features @ np.linalg.solve(normal, features.T @ actions)
    deviation = np.maximum(errors.std(axis=0), _MIN_DEVIATION)
    each = -0.5 * (errors / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    return np.asarray(each.sum(axis=1))
