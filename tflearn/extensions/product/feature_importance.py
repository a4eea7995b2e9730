"""Which features matter to a policy: what its value loses if one is shuffled among the decisions.

Permutation importance (Breiman 2001, "Random Forests", section 10), of a policy's value in place of
a model's error: the policy sees another decision's value of the feature, the rewards are those of
the decision itself. Of items, a matrix with a row for each choice, a feature is shuffled among all
legal items of all decisions. What is judged is the mean of the policy over `NUM_SHUFFLES` shuffles.

With the logged probability mu(a), w = pi(a) / mu(a) of the policy, w' = pi'(a) / mu(a) of the
shuffled one and m = min(w, w'), rewards r in [0, 1], and d, the sum over all actions of
max(pi' - pi, 0),

  E[(w - m) r + (w' - m) (1 - r)] - d  <=  the loss

since d, which is known, is the expectation of w' - m if the log takes all actions, and more if not.
The upper end is the same with both exchanged. Only what differs has a spread: what the policy does
not use loses 0, exactly. The interval is about the decisions that came, and about these shuffles.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tflearn.core import confidence_sequences
from tflearn.core.action_mask import ActionMask
from tflearn.core.confidence_sequences import Variable
from tflearn.core.errors import UserValueError
from tflearn.core.types import named_leaves

NUM_SHUFFLES = 10
MAX_FEATURES = 1_000  # each takes `NUM_SHUFFLES` actions of the policy for each decision
By = Literal['parts', 'numbers']


@dataclasses.dataclass(frozen=True)
class Feature:
    """A part of the observation, or a number of it.

    Attributes:
      name: its name.
      part: the index of the part, in the order of `tf.nest.flatten`.
      number: the index of the number in the part, of items in each of them; None: the whole part.
      of_items: whether the part has a row for each choice.
    """

    name: str
    part: int
    number: int | None
    of_items: bool

    def shuffled(self, observation: Any, legal: np.ndarray, random: np.random.Generator) -> Any:
        """Returns observations with the values of other rows.

        Args:
          observation: of all rows, a nest of arrays [S, ...].
          legal: which items are shuffled, [S, A]; a row without any stays as it is.
          random: draws the order.
        """
        leaves = list(tf.nest.flatten(observation))
        values = leaves[self.part] = np.array(leaves[self.part])  # a copy
        of_rows = values if self.of_items else values.reshape(len(values), -1)
        found = of_rows if self.number is None else of_rows[..., self.number]
        cells = legal if self.of_items else legal.any(axis=1)
        found[cells] = random.permutation(found[cells])
        return tf.nest.pack_sequence_as(observation, leaves)


def shuffled_policies(
    observation: Any,
    is_step: np.ndarray,
    probabilities: Callable[[Any], np.ndarray],
    mask: ActionMask | None,
    by: By,
    words: Mapping[str, Sequence[str]],
    seed: int,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name of each feature, and the policy's probabilities without it, [S, A].

    Args:
      observation: of all rows, a nest of arrays [S, ...].
      is_step: which rows are decisions, [S].
      probabilities: returns the policy's probabilities of all choices, [S, A].
      mask: the part of the observation that marks legal choices, which is not shuffled.
      by: whether a feature is a part of the observation or a number of one.
      words: the names of the numbers of a part, by its path.
      seed: of the shuffles.

    Raises:
      ValueError: if there are too many features.
    """
    own, random = probabilities(observation), np.random.default_rng(seed)
    legal = np.ones(own.shape, bool) if mask is None else np.asarray(mask(observation)[1])
    legal = legal & is_step[:, np.newaxis]
    features = list(_features(observation, own.shape[1], mask, by, words))
    if len(features) > MAX_FEATURES:
        raise UserValueError(
            f'got {len(features)} numbers of the observation; need at most {MAX_FEATURES}; take its parts'
        )
    for feature in features:
        mean = np.zeros(own.shape)
        for count in range(1, NUM_SHUFFLES + 1):
            # Not a sum that is divided: what is always the same stays the same to the last digit.
            mean += (probabilities(feature.shuffled(observation, legal, random)) - mean) / count
        yield feature.name, mean


def _features(
    observation: Any,
    num_choices: int,
    mask: ActionMask | None,
    by: By,
    words: Mapping[str, Sequence[str]],
) -> Iterator[Feature]:
    """Yields the features of observations [S, ...], but for the mask."""
    hidden = None if mask is None else f'observation.{mask.path}'
    for part, (name, leaf) in enumerate(named_leaves(observation, 'observation').items()):
        of_items = leaf.ndim == 3 and leaf.shape[1] == num_choices
        if name == hidden:
            continue
        if by == 'parts' or leaf.ndim == 1:
            yield Feature(name, part, None, of_items)
            continue
        size, names = int(np.prod(leaf.shape[2 if of_items else 1 :])), words.get(name, ())
        for number in range(size):
            label = names[number] if len(names) == size else number
            yield Feature(f'{name}[{label}]', part, number, of_items)


def interval(
    weights: tuple[np.ndarray, np.ndarray],
    rewards: np.ndarray,
    difference: np.ndarray,
    clusters: np.ndarray | None,
) -> tuple[float, float]:
    """Returns both ends of the 95% interval of the mean loss, each by empirical likelihood.

    Args:
      weights: w and w', of single decisions, each [N].
      rewards: from 0 to 1, [N].
      difference: d, [N].
      clusters: whose decisions these are, [N]; None: each is of another one.
    """
    by_unit = lambda each: each if clusters is None else each.mean_by(clusters)  # noqa: E731
    known = float(by_unit(Variable(difference, 0.0)).values.mean())
    low, high = (
        2 * confidence_sequences.likelihood_bound(by_unit(Variable(each, 0.0)).merged()) - known
        for each in halves(weights, rewards)
    )
    return low, 0.0 - high  # not -0


def halves(weights: tuple[np.ndarray, np.ndarray], rewards: np.ndarray) -> list[np.ndarray]:
    """Returns half of two variables, each [N], whose means are at most d plus the loss, and d less the loss.

    Those are at most 2, so the means of the halves at most 1.
    """
    both = np.minimum(*weights)
    pairs = (weights, weights[::-1])
    return [((more - both) * rewards + (less - both) * (1 - rewards)) / 2 for more, less in pairs]
