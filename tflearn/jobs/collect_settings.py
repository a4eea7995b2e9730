"""How a collector explores, how much it collects, and what it tells of its episodes."""

import dataclasses
import math
import re
from collections.abc import Collection, Sequence

from tf_agents.policies import tf_policy

from tflearn.actors import exploration
from tflearn.control import LEASE_SECS
from tflearn.errors import UserValueError

REPORT_SECS = 1.0


@dataclasses.dataclass(frozen=True)
class CollectOptions:
    """The collect job's further settings. All collectors of a run may have the same ones.

    Attributes:
      initial_random_steps: environment steps with random actions, drawn uniformly within their bounds, at the beginning
        of the run: until this collector has taken so many, or has learned that the run has.
      epsilon_ladder: an epsilon for each environment in place of the agent's; for epsilon-greedy agents (DQN).
      max_episodes_per_version: episodes that this collector finishes with the weights of one publication; then it waits
        for newer ones. Those that end in the same batched step count in full, so it may be up to B - 1 more. Episodes
        that are under way go on with the newer weights. None is no limit.
      max_sequences_per_version: refused; `Experience.versions_ahead` has taken its place.
      versions_ahead: publications that a collector need not wait for: with 1 it finishes the episodes that the learner
        takes next, while the learner learns from those before.
      collect_at_least_every_secs: a collector that has waited so long for newer weights finishes one more episode, so
        that a learner that lacks data gets some. None waits as long as it takes.
      lease_secs: where the learner hands out credits (`Experience.versions_ahead`), those of a collector that has not
        reported for so long go to the others [seconds]. More than what an environment's slowest step takes.
      served_at: 'host:port' of a server of the run's 'collect_policy' (`tflearn-serve`), which then acts in place of
        the one that is compiled here. The data's policy version is that of the newest published weights then, which
        may be a little ahead of what is served. None acts here.
      report_metrics: whether the learner is told of this collector's episodes, for its summaries; or the names of the
        collectors of which it is. Environment steps are always told.
      metrics_buffer_size: episodes that means are over; at least one for each environment.
      metrics_gamma: discount of the discounted returns per environment step, in [0, 1].
    """

    initial_random_steps: int = 0
    epsilon_ladder: exploration.EpsilonLadder | None = None
    max_episodes_per_version: int | None = None
    max_sequences_per_version: int | None = None
    versions_ahead: int = 0
    collect_at_least_every_secs: float | None = None
    lease_secs: float = LEASE_SECS
    served_at: str | None = None
    report_metrics: bool | Collection[str] = True
    metrics_buffer_size: int = 10
    metrics_gamma: float = 0.99

    def __post_init__(self) -> None:
        check_counts(
            'CollectOptions.',
            {
                'initial_random_steps': (self.initial_random_steps, 0),
                'max_episodes_per_version': (self.max_episodes_per_version, 1),
                'versions_ahead': (self.versions_ahead, 0),
                'metrics_buffer_size': (self.metrics_buffer_size, 1),
            },
        )
        if self.max_sequences_per_version is not None:
            raise UserValueError(
                f'got CollectOptions.max_sequences_per_version={self.max_sequences_per_version!r}, which was of each '
                'collector; need Experience.versions_ahead=1 (or 0, what CollectOptions.versions_ahead was): all '
                'collectors together make what the learner takes; remove it, with CollectOptions.versions_ahead and '
                'collect_at_least_every_secs'
            )
        if not 2 * REPORT_SECS <= self.lease_secs < math.inf:
            raise UserValueError(
                f'got CollectOptions.lease_secs={self.lease_secs!r}; need at least {2 * REPORT_SECS} seconds, since a '
                f'collector reports every {REPORT_SECS}'
            )
        secs = self.collect_at_least_every_secs
        if secs is not None and not 0 < secs < math.inf:
            raise UserValueError(
                f'got CollectOptions.collect_at_least_every_secs={secs!r}; need seconds above 0, or None'
            )
        if (secs is not None or self.versions_ahead) and self.max_episodes_per_version is None:
            raise UserValueError(
                f'got CollectOptions.collect_at_least_every_secs={secs!r}, versions_ahead={self.versions_ahead} '
                'without max_episodes_per_version, so that nothing is ever waited for; need that, or neither of these'
            )
        if self.served_at is not None and self.epsilon_ladder is not None:
            raise UserValueError(
                f'got CollectOptions.served_at={self.served_at!r} with an epsilon ladder; need one of them: a served '
                'policy explores by itself'
            )
        if isinstance(self.report_metrics, str):
            raise UserValueError(
                f'got CollectOptions.report_metrics={self.report_metrics!r}; need True, False or a list of names: '
                f'[{self.report_metrics!r}]'
            )
        if not 0 <= self.metrics_gamma <= 1:
            raise UserValueError(f'got CollectOptions.metrics_gamma={self.metrics_gamma!r}; need a number in [0, 1]')

    def reports_metrics(self, name: str) -> bool:
        """Returns whether the collector `name` tells the learner of its episodes."""
        if isinstance(self.report_metrics, bool):
            return self.report_metrics
        return name in self.report_metrics

    def explore(self, policy: tf_policy.TFPolicy, name: str, num_environments: int) -> tf_policy.TFPolicy:
        """Returns an agent's collect policy with the epsilons of the ladder, if there is one.

        Raises:
          ValueError: if the policy is not epsilon-greedy, or the ladder has no place for the collector `name`.
        """
        if self.epsilon_ladder is None:
            return policy
        epsilons = self.epsilon_ladder.epsilons(self._number(name), num_environments)
        return exploration.with_epsilons(policy, epsilons)

    def _number(self, name: str) -> int:
        """Returns a collector's number on the ladder: what its name ends with."""
        if self.epsilon_ladder is None or self.epsilon_ladder.num_collectors == 1:
            return 0
        return _number(name, 'an epsilon ladder for several')


def own_address(addresses: Sequence[str], name: str) -> str | None:
    """Returns the address that falls to the collector `name`, by turns; None if there are no addresses.

    Raises:
      ValueError: if there are several, and the name has no number.
    """
    if not addresses:
        return None
    return addresses[0 if len(addresses) == 1 else _number(name, 'several data_addresses') % len(addresses)]


def _number(name: str, reason: str) -> int:
    digits = re.search(r'\d+$', name)
    if digits is None:
        raise UserValueError(
            f'got the collector name {name!r} with {reason}; need a name that ends with a number from 0 on, as '
            'collect_0'
        )
    return int(digits[0])


def check_counts(prefix: str, counts: dict[str, tuple[int | None, int]]) -> None:
    """Checks integers, or None, against their least values.

    Raises:
      ValueError: naming the first that is less, or no integer.
    """
    for name, (value, least) in counts.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UserValueError(f'got {prefix}{name}={value!r}; need an integer of at least {least}')
