"""How a collector explores, how much it collects, and what it reports about its episodes."""

import re
from collections.abc import Collection, Sequence
from typing import Annotated

import tensorflow as tf
from tf_agents.policies import tf_policy

from tflearn.actors import exploration
from tflearn.actors.episode_recorder import OnEpisode
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.settings import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    checked_dataclass,
)
from tflearn.core.waiting import LEASE_SECS, PEER_TIMEOUT_SECS

REPORT_SECS = 1.0


@checked_dataclass(frozen=True)
class EpisodeLimit:
    """How many episodes a collector finishes with the weights of one publication,
    before it waits for newer ones.

    Attributes:
      max_episodes_per_version: episodes of this collector. Episodes that end in the same batched
        step all count, so there may be up to B - 1 more. Unfinished episodes continue with the
        newer weights.
      versions_ahead: how many publications a collector may be ahead: with 1 it finishes the next
        episodes while the learner trains on the previous ones.
      collect_at_least_every_secs: a collector that has waited this long for newer weights finishes
        one more episode, so that a waiting learner gets data. None waits without a limit.
    """

    max_episodes_per_version: PositiveInt
    versions_ahead: NonNegativeInt = 0
    collect_at_least_every_secs: PositiveFloat | None = None


@checked_dataclass(frozen=True)
class EpisodeMetricsOptions:
    """Which metrics of its episodes a collector computes.

    Attributes:
      buffer_size: the number of episodes that means are taken over; at least one for each
        environment.
      gamma: the discount of the discounted returns per environment step, in [0, 1].
      on_episode: called with each finished episode, an `episode_recorder.CollectedEpisode` with its
        data. It returns numbers by name, which become metrics 'custom/<name>', or None. A collector
        waits for it.
    """

    buffer_size: PositiveInt = 100
    gamma: Fraction = 0.99
    on_episode: OnEpisode | None = None

    def __post_init__(self) -> None:
        if self.on_episode is not None and not callable(self.on_episode):
            raise UserValueError(
                f'got EpisodeMetricsOptions.on_episode={self.on_episode!r}; need a function of an episode'
            )


@checked_dataclass(frozen=True)
class CollectOptions:
    """Additional settings of the collect job, usually the same for all collectors of a run.

    Attributes:
      initial_random_steps: environment steps with random actions, drawn uniformly within their
        bounds, at the beginning of the run: until this collector has taken that many, or knows that
        the run has. None: for continuous actions the `min_size` of a replay that is no queue, or
        until the learner has trained; 0 for others.
      epsilon_ladder: an epsilon for each environment instead of the agent's; for epsilon-greedy
        agents (DQN).
      episode_limit: how many episodes are finished with the weights of one publication; None is no
        limit.
      max_env_steps: the run's environment steps, over all collectors, after which they end. The
        coordinator allows each a part of the rest at a time, so there may be a batched step of each
        more at most. The learner continues to its own stop condition, or until the data are used up
        (`samples_per_insert`, a queue). None is no limit.
      lease_secs: with credits (`Queue.versions_ahead`), the credits of a collector that has not
        reported for this long go to the others [seconds]. Must be longer than the environment's
        slowest step.
      served_at: 'host:port' of a server of the run's 'collect_policy' (`tflearn-serve`), which
        computes the actions instead of this process. The data's policy version is then that of the
        newest published weights, which may be a little newer than the served ones. None computes
        actions in this process.
      server_timeout_secs: how long the coordinator's machine may not answer before the collector
        ends [s]. If only the server is down, the collector waits for `--connect_timeout_secs`.
      report_metrics: whether this collector reports its episodes to the learner, for its summaries;
        or the names of the collectors that do. Environment steps are always reported.
      episode_metrics: what is measured of episodes, and what is called at their end.
      max_saved_gb: the synchronous job's checkpoints hold the environments, with what they hold, if
        that takes at most so much [GB]. Otherwise a resumed run begins new episodes.
      seed: the seed of the environments and of the policy's draws, mixed with the collector's name;
        None draws one. In the synchronous job it is that of the environments; None is
        `Initial.seed`.
    """

    initial_random_steps: NonNegativeInt | None = None
    epsilon_ladder: exploration.EpsilonLadder | None = None
    episode_limit: EpisodeLimit | None = None
    max_env_steps: PositiveInt | None = None
    lease_secs: Annotated[float, Range(least=2 * REPORT_SECS, advice='collectors report each second')] = LEASE_SECS
    served_at: str | None = None
    server_timeout_secs: PositiveFloat = PEER_TIMEOUT_SECS
    report_metrics: bool | Collection[str] = True
    episode_metrics: EpisodeMetricsOptions = EpisodeMetricsOptions()
    max_saved_gb: NonNegativeFloat = 0.1
    seed: int | None = None

    def __post_init__(self) -> None:
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

    def random_steps(self, policy: tf_policy.TFPolicy, experience: Experience) -> tuple[int, bool]:
        """Returns `initial_random_steps` for a collect policy,
        and whether they end when the learner has trained.
        """
        if self.initial_random_steps is not None:
            return self.initial_random_steps, False
        actions, replay = tf.nest.flatten(policy.action_spec), experience.replay
        if not replay.learns_from_old_items or not all(spec.dtype.is_floating for spec in actions):
            return 0, True
        try:
            exploration.uniform(policy)
        except UserValueError:  # random actions do not have bounds, or not what the policy records
            return 0, True
        return replay.min_size, True

    def explore(self, policy: tf_policy.TFPolicy, name: str, num_environments: int) -> tf_policy.TFPolicy:
        """Returns an agent's collect policy with the ladder's epsilons, if there is a ladder.

        Raises:
          ValueError: if the policy is not epsilon-greedy, or the ladder has no epsilons for the
            collector `name`.
        """
        if self.epsilon_ladder is None:
            return policy
        alone = self.epsilon_ladder.num_collectors == 1
        number = 0 if alone else _number(name, 'an epsilon ladder for several')
        return exploration.with_epsilons(policy, self.epsilon_ladder.epsilons(number, num_environments))


def own_address(addresses: Sequence[str], name: str) -> str | None:
    """Returns the address for the collector `name`, in round-robin order;
    None if there are no addresses.

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
