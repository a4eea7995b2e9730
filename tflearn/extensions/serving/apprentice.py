"""Apprentices: policies that are asked beside the product's own choice,
which is what is answered and logged.

A policy is one as long as none of its versions has a state: `tflearn promote` lets it act by
itself.
"""

import collections
import re
from collections.abc import Mapping

import numpy as np

from tflearn.extensions.serving.exploration import PROBABILITY, Arrays, Chooser
from tflearn.extensions.serving.served_version import InvalidRequest

DEFAULT_ACTION = 'default-action'  # of the request's metadata: the product's own choice
POLICY_ACTION = 'policy_action'  # in the log: what the policy would have answered
ARM = 'apprentice'
_WINDOW = 1_000  # decisions that are recent


def default_actions(chooser: Chooser, metadata: Mapping[str, str], inputs: Arrays) -> np.ndarray:
    """Returns the product's own choices, [B].

    Args:
      chooser: that of the version that is asked.
      metadata: of the request, with a number for each row, separated by commas.
      inputs: arrays [B, ...] by name.

    Raises:
      InvalidRequest: if it is missing, or is no legal action for each row.
    """
    text, actions, rows = metadata.get(DEFAULT_ACTION, ''), chooser.actions, len(next(iter(inputs.values())))
    need = f'need the action that the product takes by itself, {actions[0]} to {actions[-1]}'
    need += f', for each of the {rows} rows, separated by commas' if rows > 1 else ', such as default-action: 0'
    words = [word.strip() for word in text.split(',')]
    if not text or len(words) != rows or not all(re.fullmatch('-?[0-9]{1,18}', word) for word in words):
        raise InvalidRequest(f'got {f"{DEFAULT_ACTION}: {text[:80]}" if text else f"no {DEFAULT_ACTION}"}; {need}')
    found = np.array([int(word) for word in words])
    wrong = (found < actions[0]) | (found > actions[-1])
    if wrong.any():
        raise InvalidRequest(f'got {DEFAULT_ACTION}: {found[wrong][0]}; {need}')
    illegal = ~chooser.legal(inputs, rows)[np.arange(rows), found - actions[0]]
    if illegal.any():
        what = f'{found[illegal][0]}, which {chooser.mask} rules out'
        raise InvalidRequest(f'got {DEFAULT_ACTION}: {what}; need a legal one')
    return found


def answered(actions: np.ndarray, outputs: Arrays) -> dict[str, np.ndarray]:
    """Returns the outputs with the product's own choices [B] in place of the policy's,
    which are kept beside them.
    """
    own = outputs['action']
    return {**outputs, 'action': actions.astype(own.dtype), PROBABILITY: np.ones(len(own)), POLICY_ACTION: own}


class LiveAgreement:
    """How often the newest version of a policy would have decided as the product did,
    since the server began.

    Attributes:
      version: the version.
      num: its decisions.
      same: how many of them were the product's own choice.
    """

    def __init__(self, version: int):
        self.version, self.num, self.same = version, 0, 0
        self._recent: collections.deque[bool] = collections.deque(maxlen=_WINDOW)

    def add(self, outputs: Arrays) -> np.ndarray:
        """Counts the decisions of a request; returns which were the same, [B]."""
        is_same = outputs['action'] == outputs[POLICY_ACTION]
        self.num += len(is_same)
        self.same += int(is_same.sum())
        self._recent.extend(is_same.tolist())
        return is_same

    @property
    def recent(self) -> float:
        """The share of the last 1,000 decisions."""
        recent = self._recent.copy()  # while another thread adds to it
        return sum(recent) / max(len(recent), 1)

    def metrics(self, name: str) -> Mapping[str, float]:
        """Returns what the job's status says."""
        shares = {'agreement': self.same / max(self.num, 1), 'recent_agreement': self.recent}
        return {f'{name}_{key}': value for key, value in {**shares, 'agreement_decisions': self.num}.items()}
