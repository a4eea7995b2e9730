"""How often an apprentice, whose server answered by the product's own choice, would have decided the same.

It is counted in the decision log, which is what servers that were killed, or several ones, have in common.
"""

import array
import dataclasses
import json
from collections.abc import Mapping

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import local_path


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The decisions beside which one version was asked.

    Attributes:
      is_same: whether it would have decided the same, in the order of the times.
      recent: how many of the last ones are recent.
    """

    is_same: np.ndarray
    recent: int

    def is_ready(self, least: float) -> bool:
        """Returns whether there are enough recent decisions, and at least such a share of them is the same."""
        return len(self.is_same) >= self.recent and bool(self.is_same[-self.recent :].mean() >= least)

    def text(self) -> str:
        """Returns the shares of all and of the recent decisions."""
        recent = self.is_same[-self.recent :]
        return (
            f'as the product in {self.is_same.sum():,} of {len(self.is_same):,} decisions ({self.is_same.mean():.1%}), '
            f'in {recent.sum():,} of the last {len(recent):,} ({recent.mean():.1%})'
        )


def read(log: str, policy: str, recent: int) -> Mapping[int, Agreement]:
    """Returns the agreement of a policy's versions, the newest first.

    Args:
      log: the directory of a decision log, whose complete files are read.
      policy: the policy's name.
      recent: how many of the last decisions are recent.

    Raises:
      ValueError: if there is none of a server with --apprentice for the policy, or a line is none of a server.
    """
    times: dict[int, array.array[float]] = {}
    same: dict[int, bytearray] = {}
    for path in sorted(local_path(log, '--apprentice').glob('decisions-*.jsonl')):
        with path.open('rb') as file:
            for number, line in enumerate(file, 1):
                try:
                    decision = json.loads(line)
                    if 'policy_action' not in decision or decision['model'] != policy:
                        continue
                    version, at = int(decision['version']), float(decision['time'])
                    is_same = decision['action'] == decision['policy_action']
                except (ValueError, KeyError, TypeError) as error:
                    raise UserValueError(
                        f'got the line {number} of {path} ({error!r}); need lines of JSON as tflearn-serve writes them'
                    ) from error
                times.setdefault(version, array.array('d')).append(at)
                same.setdefault(version, bytearray()).append(is_same)
    if not times:
        raise UserValueError(
            f'got --apprentice={log} without complete files with a decision of {policy} as an apprentice; need the '
            '--decision_log of tflearn-serve --apprentice'
        )
    return {
        version: Agreement(np.frombuffer(same[version], bool)[np.argsort(times[version], kind='stable')], recent)
        for version in sorted(times, reverse=True)
    }
