"""How the server chooses among the actions of a policy, and how likely each choice was.

The probability that is logged is that of what was served. It is known for a policy of one Discrete action: a greedy one
(its distribution has one action, `loc`), mixed with random actions, or one that draws (its distribution has `logits`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveFloat, checked_dataclass
from tflearn.policies import signatures

Arrays = Mapping[str, np.ndarray]
_ACTION, _LOGITS, _LOC = 'action', 'distribution_logits', 'distribution_loc'
_MID = 1  # a step that neither begins nor ends an episode


@checked_dataclass(frozen=True)
class Exploration:
    """What is served besides the policy's own actions.

    Attributes:
      epsilon: the share of actions that are drawn uniformly, of those that are legal.
      temperature: divides the logits of a policy that draws: above 1 it draws more evenly.
    """

    epsilon: Fraction = 0.0
    temperature: PositiveFloat = 1.0


class Choices(NamedTuple):
    """Chosen actions [B, ...], by name; their probabilities float64 [B], None if unknown; and what was legal [B, K]."""

    actions: Arrays
    probabilities: np.ndarray | None = None
    mask: np.ndarray | None = None


class Chooser:
    """Chooses the actions of one version.

    Attributes:
      signature: the name of the signature that it computes; it takes the inputs of `signatures.DEFAULT` and others.
    """

    def __init__(self, metadata: Mapping[str, Any], outputs: Mapping[str, tuple[str, ...]], exploration: Exploration):
        """
        Args:
          metadata: of the version.
          outputs: the names of the outputs of each signature.
          exploration: what is served besides the policy's own actions.

        Raises:
          ValueError: if the policy cannot explore so.
        """
        action = (metadata.get('specs') or {}).get(_ACTION)
        is_integer = isinstance(action, dict) and str(action.get('dtype')).startswith(('int', 'uint'))
        low, high = (action.get('minimum'), action.get('maximum')) if action and is_integer else (None, None)
        self._start, self._size = 0, 0  # of the choices of one Discrete action
        if isinstance(low, int) and isinstance(high, int):
            self._start, self._size = low, high - low + 1
        found = outputs.get('distribution', ()) if self._size else ()
        self._draws, self._is_known = _LOGITS in found, _LOGITS in found or _LOC in found
        self.signature = 'distribution' if self._draws else signatures.DEFAULT
        self._mask = f'observation_{metadata["action_mask"].replace(".", "_")}' if metadata.get('action_mask') else ''
        self._exploration = exploration
        if (exploration.epsilon and not self._is_known) or (exploration.temperature != 1 and not self._draws):
            raise UserValueError(
                f'got {exploration} for a policy with {", ".join(found) or "no known probabilities"}; need logits for '
                'a temperature, and these or a greedy policy of one Discrete action for an epsilon'
            )

    def inputs(self, given: Arrays, specs: Mapping[str, Any]) -> Arrays:
        """Returns the inputs of `signature`: those of `signatures.DEFAULT`, and a step in an episode."""
        rows = len(next(iter(given.values())))
        missing = {name: spec for name, spec in specs.items() if name not in given}
        fill = {'step_type': _MID, 'discount': 1}
        return {
            **given,
            **{
                name: np.full((rows, *spec.shape[1:]), fill.get(name, 0), spec.dtype.as_numpy_dtype)
                for name, spec in missing.items()
            },
        }

    def __call__(
        self, inputs: Arrays, outputs: Arrays, random: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], Choices]:
        """Returns the outputs of `signatures.DEFAULT`, and what was chosen."""
        mask = inputs[self._mask] != 0 if self._mask in inputs else None
        if self._is_known and not self._draws and not self._exploration.epsilon:
            return dict(outputs), Choices({_ACTION: outputs[_ACTION]}, np.ones(len(outputs[_ACTION])), mask)
        if not self._is_known:
            return dict(outputs), Choices({k: v for k, v in outputs.items() if k.startswith(_ACTION)}, None, mask)
        legal = np.ones((len(next(iter(outputs.values()))), self._size), bool) if mask is None else mask
        legal = legal | ~legal.any(axis=-1, keepdims=True)  # where nothing is legal, anything may be served
        if self._draws:
            logits = outputs[_LOGITS].astype(np.float64) / self._exploration.temperature
            own = np.exp(logits - logits.max(axis=-1, keepdims=True))
        else:
            own = np.eye(self._size)[outputs[_ACTION] - self._start]
        own /= own.sum(axis=-1, keepdims=True)
        epsilon = self._exploration.epsilon
        probabilities = (1 - epsilon) * own + epsilon * legal / legal.sum(axis=-1, keepdims=True)
        sums = probabilities.cumsum(axis=-1)
        drawn = (random.random(len(sums))[:, np.newaxis] * sums[:, -1:] >= sums).sum(axis=-1)
        drawn = np.minimum(drawn, self._size - 1)
        dtype = outputs[_ACTION].dtype if _ACTION in outputs else np.int64
        actions = {_ACTION: (drawn + self._start).astype(dtype)}
        rest = {name: value for name, value in outputs.items() if name.startswith('policy_state')}
        return {**rest, **actions}, Choices(actions, probabilities[np.arange(len(drawn)), drawn], mask)


# Model, version, inputs, what was chosen, the request's id and arm -> the ids of the decisions.
Record = Callable[[str, int, Arrays, Choices, str, str], list[str]]
