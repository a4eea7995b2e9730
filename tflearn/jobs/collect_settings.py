"""How a collector explores, how much it collects, and what it reports about its episodes."""

import dataclasses
import math
import re
from collections.abc import Collection, Sequence

from tf_agents.policies import tf_policy

from tflearn.actors import exploration
from tflearn.actors.episode_recorder import OnEpisode
from tflearn.coordinator.control import LEASE_SECS
from tflearn.core.errors import UserValueError
from tflearn.replay.connection import SERVER_TIMEOUT_SECS

REPORT_SECS = 1.0


def check_counts(prefix: str, counts: dict[str, tuple[int | None, int]]) -> None:
    """Checks that values are None or integers of at least a minimum.

    Raises:
      ValueError: if one is not; it names the first one.
    """
    for name, (value, least) in counts.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UserValueError(f'got {prefix}{name}={value!r}; need an integer of at least {least}')


@dataclasses.dataclass(frozen=True)
class EpisodeLimit:
    """How many episodes a collector finishes with the weights of one publication, before it waits for newer ones.

    Attributes:
      max_episodes_per_version: episodes of this collector. Episodes that end in the same batched step all count, so
        there may be up to B - 1 more. Unfinished episodes continue with the newer weights.
      versions_ahead: publications that a collector need not wait for: with 1 it finishes the episodes that the learner
        takes next while the learner trains on the ones before.
      collect_at_least_every_secs: a collector that has waited this long for newer weights finishes one more episode, so
        that a learner that lacks data gets some. None waits without a limit.
    """

    max_episodes_per_version: int
    versions_ahead: int = 0
    collect_at_least_every_secs: float | None = None

    def __post_init__(self) -> None:
        check_counts(
            'EpisodeLimit.',
            {
                'max_episodes_per_version': (self.max_episodes_per_version, 1),
                'versions_ahead': (self.versions_ahead, 0),
            },
        )
        secs = self.collect_at_least_every_secs
        if secs is not None and not 0 < secs < math.inf:
            raise UserValueError(
                f'got EpisodeLimit.collect_at_least_every_secs={secs!r}; need seconds above 0, or None'
            )


@dataclasses.dataclass(frozen=True)
class EpisodeMetricsOptions:
    """What a collector measures of its episodes.

    Attributes:
      buffer_size: the number of episodes that means are taken over; at least one for each environment.
      gamma: the discount of the discounted returns per environment step, in [0, 1].
      on_episode: called with each finished episode, an `episode_recorder.CollectedEpisode` with its data. It returns
        numbers by name, which become metrics 'custom/<name>', or None. A collector waits for it.
    """

    buffer_size: int = 10
    gamma: float = 0.99
    on_episode: OnEpisode | None = None

    def __post_init__(self) -> None:
        check_counts('EpisodeMetricsOptions.', {'buffer_size': (self.buffer_size, 1)})
        if not 0 <= self.gamma <= 1:
            raise UserValueError(f'got EpisodeMetricsOptions.gamma={self.gamma!r}; need a number in [0, 1]')
        if self.on_episode is not None and not callable(self.on_episode):
            raise UserValueError(
                f'got EpisodeMetricsOptions.on_episode={self.on_episode!r}; need a function of an episode'
            )


@dataclasses.dataclass(frozen=True)
class CollectOptions:
    """Additional settings of the collect job. All collectors of a run can have the same ones.

    Attributes:
      initial_random_steps: environment steps with random actions, drawn uniformly within their bounds, at the beginning
        of the run: until this collector has taken that many, or knows that the run has.
      epsilon_ladder: an epsilon for each environment instead of the agent's; for epsilon-greedy agents (DQN).
      episode_limit: how many episodes are finished with the weights of one publication; None is no limit.
      max_env_steps: the run's environment steps, over all collectors, after which they end; each knows of the others'
        steps from the newest weights, so there may be a few more. The learner goes on to its own stop condition, or
        until the data are used up (`samples_per_insert`, a queue). None is no limit.
      lease_secs: if the learner grants credits (`Queue.versions_ahead`), the credits of a collector that has not
        reported for this long go to the others [seconds]. Must be longer than the environment's slowest step.
      served_at: 'host:port' of a server of the run's 'collect_policy' (`tflearn-serve`), which then acts instead of the
        policy that is compiled here. The data's policy version is then that of the newest published weights, which
        may be a little ahead of the served ones. None acts here.
      server_timeout_secs: how long nothing may be heard of the replay server's machine before the collector ends [s]. A
        server that is down on a machine that answers is waited for as long as `--connect_timeout_secs`.
      report_metrics: whether this collector reports its episodes to the learner, for its summaries; or the names of the
        collectors that do. Environment steps are always reported.
      episode_metrics: what is measured of episodes, and what is called at their end.
    """

    initial_random_steps: int = 0
    epsilon_ladder: exploration.EpsilonLadder | None = None
    episode_limit: EpisodeLimit | None = None
    max_env_steps: int | None = None
    lease_secs: float = LEASE_SECS
    served_at: str | None = None
    server_timeout_secs: float = SERVER_TIMEOUT_SECS
    report_metrics: bool | Collection[str] = True
    episode_metrics: EpisodeMetricsOptions = EpisodeMetricsOptions()

    def __post_init__(self) -> None:
        check_counts(
            'CollectOptions.',
            {
                'initial_random_steps': (self.initial_random_steps, 0),
                'max_env_steps': (self.max_env_steps, 1),
            },
        )
        if not 2 * REPORT_SECS <= self.lease_secs < math.inf:
            raise UserValueError(
                f'got CollectOptions.lease_secs={self.lease_secs!r}; need at least {2 * REPORT_SECS} seconds, since a '
                f'collector reports every {REPORT_SECS}'
            )
        if not self.server_timeout_secs > 0:
            raise UserValueError(
                f'got CollectOptions.server_timeout_secs={self.server_timeout_secs!r}; need seconds above 0'
            )
        if self.served_at is not None and self.epsilon_ladder is not None:
            raise UserValueError(
                f'got CollectOptions.served_at={self.served_at!r} with an epsilon ladder; need one of them: a served '
                'policy has its own exploration'
            )
        if isinstance(self.report_metrics, str):
            raise UserValueError(
                f'got CollectOptions.report_metrics={self.report_metrics!r}; need True, False or a list of names: '
                f'[{self.report_metrics!r}]'
            )

    def reports_metrics(self, name: str) -> bool:
        """Returns whether the collector `name` reports its episodes to the learner."""
        if isinstance(self.report_metrics, bool):
            return self.report_metrics
        return name in self.report_metrics

    def explore(self, policy: tf_policy.TFPolicy, name: str, num_environments: int) -> tf_policy.TFPolicy:
        """Returns an agent's collect policy with the ladder's epsilons, if there is a ladder.

        Raises:
          ValueError: if the policy is not epsilon-greedy, or the ladder has no epsilons for the collector `name`.
        """
        if self.epsilon_ladder is None:
            return policy
        epsilons = self.epsilon_ladder.epsilons(self._number(name), num_environments)
        return exploration.with_epsilons(policy, epsilons)

    def _number(self, name: str) -> int:
        """Returns a collector's number on the ladder, with which its name ends."""
        if self.epsilon_ladder is None or self.epsilon_ladder.num_collectors == 1:
            return 0
        return _number(name, 'an epsilon ladder for several')


def own_address(addresses: Sequence[str], name: str) -> str | None:
    """Returns the address for the collector `name`, in round-robin order; None if there are no addresses.

    Raises:
      ValueError: if there are several addresses, and the name has no number.
    """
    if not addresses:
        return None
    return addresses[0 if len(addresses) == 1 else _number(name, 'several data_addresses') % len(addresses)]


def _number(name: str, reason: str) -> int:
    digits = re.search(r'\d+$', name)
    if digits is None:
        raise UserValueError(
            f'got the collector name {name!r} with {reason}; need a name that ends with a number from 0 on, such as '
            'collect_0'
        )
    return int(digits[0])
