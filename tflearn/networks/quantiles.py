"""Quantile features of numbers with heavy tails: counts, sizes, times. For `preprocessing_layers`.

A number becomes its share q of the boundaries that are not above it, with sqrt(q) and q * q: what
LLVM's inliner learns from (Trofin et al. 2021, arXiv 2101.04808). Boundaries that are quantiles of
the data make q uniform.

Boundaries are in files, one number a line, `<directory>/<path of the leaf>.buckets`, or computed
from an environment.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserFileNotFoundError, UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import EnvironmentFactory, leaf_paths

_SUFFIX = '.buckets'

Boundaries = Mapping[str, Sequence[float]]


class QuantileFeatures(tf.keras.layers.Layer):
    """Numbers [B, ...] -> features [B, ..., 3], floats within [0, 1]: q, sqrt(q), q * q.

    q is the share of the boundaries that are at most the number.
    """

    def __init__(self, boundaries: Sequence[float], **kwargs: Any):
        """
        Args:
          boundaries: in ascending order; a number may be there several times.
          **kwargs: Keras' arguments of a layer.

        Raises:
          ValueError: if there are none, or they do not ascend.
        """
        super().__init__(**kwargs)
        self._boundaries = [float(boundary) for boundary in boundaries]
        if not self._boundaries or not np.all(np.diff(self._boundaries) >= 0):
            raise UserValueError(f'got boundaries={self._boundaries[:5]}...; need one or more numbers that ascend')
        self._buckets = tf.keras.layers.Discretization(self._boundaries)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, since networks copy their layers."""
        return {**super().get_config(), 'boundaries': self._boundaries}

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        share = tf.cast(self._buckets(inputs), tf.float32) / len(self._boundaries)
        return tf.cast(tf.stack([share, tf.sqrt(share), share * share], axis=-1), self.compute_dtype)


def from_files(directory: str) -> dict[str, QuantileFeatures]:
    """Makes layers by the path of the leaf, one for each file of boundaries in a directory.

    Args:
      directory: holds `<path>.buckets`, with one number a line.

    Raises:
      ValueError: if a file has anything but numbers that ascend.
      FileNotFoundError: if there is no such file.
    """
    files = sorted(pathlib.Path(directory).glob(f'*{_SUFFIX}'))
    if not files:
        raise UserFileNotFoundError(f'got directory={directory!r}; need files <path of the leaf>{_SUFFIX} in it')
    layers = {}
    for file in files:
        try:
            layers[file.name.removesuffix(_SUFFIX)] = QuantileFeatures(list(map(float, file.read_text().split())))
        except (OSError, ValueError) as error:
            raise UserValueError(f'got the file {file} ({error}); need a number a line, ascending') from error
    return layers


def from_environment(
    make_environment: EnvironmentFactory,
    num_steps: int = 1_000,
    num_boundaries: int = 100,
    paths: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, QuantileFeatures]:
    """Makes layers by the path of the leaf, with quantiles of what an environment shows; see `boundaries`.

    All jobs of a run compute the same, if the environment follows its seed.
    """
    found = boundaries(make_environment, num_steps, num_boundaries, paths, seed)
    return {path: QuantileFeatures(numbers) for path, numbers in found.items()}


@checked
def boundaries(
    make_environment: EnvironmentFactory,
    num_steps: PositiveInt = 1_000,
    num_boundaries: PositiveInt = 100,
    paths: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Returns quantiles of the leaves of an observation, by path, in episodes of random actions.

    Args:
      make_environment: makes the environment.
      num_steps: how many observations to take.
      num_boundaries: how many quantiles of each leaf to return, at equal distances.
      paths: the leaves; None takes all scalars.
      seed: of the environment and of the actions.

    Raises:
      ValueError: if a number is below 1, or for a path that no leaf has.
    """
    environment = make_environment(num_environments=1, seed=seed)
    try:
        leaves = dict(
            zip(leaf_paths(environment.specs.observation), tf.nest.flatten(environment.specs.observation), strict=True)
        )
        chosen = [path for path, spec in leaves.items() if not spec.shape.rank] if paths is None else list(paths)
        if not chosen or not set(chosen) <= leaves.keys():
            raise UserValueError(f'got paths={chosen}; need one or more of {", ".join(leaves)}')
        random = np.random.default_rng(seed)
        seen: dict[str, list[np.ndarray]] = {path: [] for path in chosen}
        time_step = environment.reset()
        for _ in range(num_steps):
            observed = dict(zip(leaves, tf.nest.flatten(time_step.observation), strict=True))
            for path in chosen:
                seen[path].append(np.ravel(observed[path]))
            action = tf.nest.map_structure(lambda spec: _draw(spec, random), environment.specs.action)
            time_step = environment.step(action)
    finally:
        environment.close()
    shares = (np.arange(num_boundaries) + 0.5) / num_boundaries
    return {path: np.quantile(np.concatenate(seen[path]), shares, method='lower').tolist() for path in chosen}


def write(directory: str, found: Boundaries) -> None:
    """Writes boundaries as `from_files` reads them."""
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for path, numbers in found.items():
        (folder / f'{path}{_SUFFIX}').write_text(''.join(f'{number:.17g}\n' for number in numbers))


def _draw(spec: Any, random: np.random.Generator) -> np.ndarray:
    """Draws an action [1, ...] within the bounds of `spec`, or from a normal distribution where it has none."""
    shape = (1, *spec.shape)
    if spec.dtype.is_integer:
        return random.integers(spec.minimum, spec.maximum, shape, endpoint=True).astype(spec.dtype.as_numpy_dtype)
    drawn = np.clip(random.normal(size=shape), spec.minimum, spec.maximum)
    return drawn.astype(spec.dtype.as_numpy_dtype)
