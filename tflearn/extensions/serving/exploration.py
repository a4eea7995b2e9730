"""How the server chooses among the actions of a policy, and how likely each choice was.

The probability that is logged is that of what was served. It is known for a policy of one Discrete
action: a greedy one (its distribution has one action, `loc`), mixed with random actions, or one
that draws (its distribution has `logits`, those of Thompson sampling are the shares of draws from
the posterior, see `agents.linear_bandit`); and, as a density, for one of a number, or a vector,
that is drawn evenly from one of several windows (`agents.smoothing`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveFloat, checked_dataclass
from tflearn.policies import signatures

Arrays = Mapping[str, np.ndarray]
_ACTION, _LOGITS, _LOC = 'action', 'distribution_logits', 'distribution_loc'
_OF_WINDOWS, _WINDOWS = 'distribution_mixture_distribution_logits', 'distribution_components_distribution'
PROBABILITY = 'probability'  # of the action, besides the policy's outputs; of a number the density


class CannotExplore(UserValueError):
    """A policy cannot be served with an exploration."""


@checked_dataclass(frozen=True)
class Exploration:
    """What is served besides the policy's own actions.

    Attributes:
      epsilon: the share of actions that are drawn uniformly, of those that are legal.
      temperature: divides the logits of a policy that draws: above 1 it draws more evenly.
    """

    epsilon: Fraction = 0.0
    temperature: PositiveFloat = 1.0


class Chooser:
    """Chooses the actions of one version.

    Attributes:
      signature: the name of the signature that it computes; it takes the inputs of
        `signatures.DEFAULT` and others.
      actions: those of one Discrete action; none of any other.
      mask: the input that says which actions are legal, '' for none.
      explores: whether it serves other actions than the policy's own.
    """

    def __init__(self, metadata: Mapping[str, Any], outputs: Mapping[str, tuple[str, ...]], exploration: Exploration):
        """
        Args:
          metadata: of the version.
          outputs: the names of the outputs of each signature.
          exploration: what is served besides the policy's own actions.

        Raises:
          CannotExplore: if the policy cannot explore so.
        """
        action: Any = (metadata.get('specs') or {}).get(_ACTION)
        is_leaf = isinstance(action, dict) and 'dtype' in action
        low, high = (action.get('minimum'), action.get('maximum')) if is_leaf else (None, None)
        is_integer = is_leaf and str(action['dtype']).startswith(('int', 'uint'))
        self.actions = range(0)
        if is_integer and isinstance(low, int) and isinstance(high, int):
            self.actions = range(low, high + 1)
        found = outputs.get('distribution', ())
        # Of a number or a vector that is drawn from windows.
        self._range: tuple[Any, ...] = (low, high) if _OF_WINDOWS in found else ()
        found = found if self.actions or self._range else ()
        self._draws = _LOGITS in found
        self._is_known = bool(self._draws or _LOC in found or self._range)
        self.signature = 'distribution' if self._draws or self._range else signatures.DEFAULT
        self.mask = f'observation_{metadata["action_mask"].replace(".", "_")}' if metadata.get('action_mask') else ''
        self._exploration, self.explores = exploration, exploration != Exploration()
        if (exploration.epsilon and not self._is_known) or (exploration.temperature != 1 and not self._draws):
            raise CannotExplore(
                f'got {exploration} for a policy with {", ".join(found) or "no known probabilities"}; need logits for '
                'a temperature, and these, a greedy policy of one Discrete action or smoothed numbers for an epsilon'
            )

    def __call__(self, inputs: Arrays, outputs: Arrays, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the outputs of `signatures.DEFAULT`, and the actions' probabilities [B],
        if they are known.
        """
        epsilon = self._exploration.epsilon
        if not self._is_known:
            return dict(outputs)
        if self._range:
            return self._draw_numbers(outputs, random)
        if not self._draws and not epsilon:
            return {**outputs, PROBABILITY: np.ones(len(outputs[_ACTION]))}
        first = next(iter(outputs.values()))
        legal = self.legal(inputs, len(first))
        drawn, probabilities = self._draw(outputs[_LOGITS], random) if self._draws else (None, None)
        own = outputs[_ACTION] - self.actions[0] if drawn is None else drawn
        rows, count = np.arange(len(first)), legal.sum(axis=-1)
        explored = np.flatnonzero(random.random(len(first)) < epsilon)
        rank = (random.random(len(explored)) * count[explored]).astype(np.int64)
        chosen = own.copy()
        chosen[explored] = (legal[explored].cumsum(axis=-1) > rank[:, np.newaxis]).argmax(axis=-1)
        by_policy = (chosen == own) if probabilities is None else probabilities[rows, chosen]
        probability = (1 - epsilon) * by_policy + epsilon * legal[rows, chosen] / count
        dtype = outputs[_ACTION].dtype if _ACTION in outputs else np.int64
        rest = {name: value for name, value in outputs.items() if name.startswith('policy_state')}
        return {**rest, _ACTION: (chosen + self.actions[0]).astype(dtype), PROBABILITY: probability}

    def legal(self, inputs: Arrays, rows: int) -> np.ndarray:
        """Returns which of the actions may be served, [B, K]."""
        if self.mask not in inputs:
            return np.broadcast_to(True, (rows, len(self.actions)))
        legal = inputs[self.mask] != 0
        # Where nothing is legal, anything may be served.
        return legal | ~legal.any(axis=-1, keepdims=True)

    def _draw(self, logits: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws by logits [B, K]; returns the actions [B] and all their probabilities [B, K]."""
        probabilities = _softmax(logits.astype(np.float64) / self._exploration.temperature)
        return _drawn(probabilities, random), probabilities

    def _draw_numbers(self, outputs: Arrays, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws from windows, and evenly from the range, which is one more; returns the outputs."""
        logits, epsilon, ends = outputs[_OF_WINDOWS].astype(np.float64), self._exploration.epsilon, []
        for name, end in zip(('_low', '_high'), self._range, strict=True):
            # Of a vector the names are longer by one distribution.
            (key,) = (each for each in outputs if each.startswith(_WINDOWS) and each.endswith(name))
            own = outputs[key].astype(np.float64)
            ends.append(np.concatenate([own, np.broadcast_to(end, own[:, :1].shape)], axis=1))
        shares = np.column_stack([(1 - epsilon) * _softmax(logits), np.full(len(logits), epsilon)])
        low, high = ends
        window = np.arange(len(shares)), _drawn(shares, random)
        # Rounded to float32 a number may be an end of its window, which is within it.
        action = (low[window] + random.random(low[window].shape) * (high - low)[window]).astype(np.float32)
        of_all = action[:, np.newaxis]
        low, high, of_all = (each.reshape(*each.shape[:2], -1) for each in (low, high, of_all))
        is_within = ((low <= of_all) & (of_all <= high)).all(axis=2)
        return {_ACTION: action, PROBABILITY: (shares * is_within / (high - low).prod(axis=2)).sum(axis=1)}


def _softmax(logits: np.ndarray) -> np.ndarray:
    probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(probabilities / probabilities.sum(axis=-1, keepdims=True))


def _drawn(probabilities: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws by probabilities [B, K]; returns indices [B]."""
    sums = probabilities.cumsum(axis=-1)
    drawn = (random.random(len(sums))[:, np.newaxis] * sums[:, -1:] >= sums).sum(axis=-1)
    return np.asarray(np.minimum(drawn, sums.shape[-1] - 1))
