"""Features of observations and actions in which a value or a policy is linear: random Fourier features.

Rahimi and Recht 2007, "Random Features for Large-Scale Kernel Machines": cos(w x + b) with normal w approximate a
Gaussian kernel. Its width is the median distance of the data (the median heuristic), times 0.5, 1 or 2.
"""

import numpy as np

from tflearn.core.errors import UserValueError

_WIDTHS = (0.5, 1.0, 2.0)
_NUM_PAIRS = 2000
MAX_INPUTS = 1000  # numbers of an observation; images need a network


class Features:
    """A map from rows of numbers to features: 1, the numbers, and random Fourier features of them."""

    def __init__(self, inputs: np.ndarray, num_features: int, seed: int):
        """Chooses scales by the data.

        Args:
          inputs: [N, I], one row for each state, or for each state and action.
          num_features: the number of features, D; at least I + 1.
          seed: the seed of the random frequencies.

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
        self._mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
        self._scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1.0), 0.0)
        scaled = (inputs - self._mean) * self._scale
        pairs = random.integers(0, len(inputs), (2, _NUM_PAIRS))
        distances = np.linalg.norm(scaled[pairs[0]] - scaled[pairs[1]], axis=1)
        distances = distances[distances > 0]
        width = np.median(distances) if distances.size else 1.0
        num_random = num_features - num_inputs - 1
        widths = width * np.resize(_WIDTHS, num_random)
        self._frequencies = random.normal(size=(num_inputs, num_random)) / widths
        self._phases = random.uniform(0, 2 * np.pi, num_random)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Returns the features [N, D] of inputs [N, I], float64."""
        scaled = (inputs - self._mean) * self._scale
        waves = np.cos(scaled @ self._frequencies + self._phases)
        return np.concatenate([np.ones((len(inputs), 1)), scaled, waves], axis=1)


def by_choice(features: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Returns features of states and choices, each choice with parameters of its own.

    Args:
      features: of states, [N, D].
      probabilities: of the choices, or 1 for the one that was taken, [N, A].

    Returns:
      The mean over choices, [N, A * D].
    """
    return (probabilities[:, :, np.newaxis] * features[:, np.newaxis, :]).reshape(len(features), -1)
