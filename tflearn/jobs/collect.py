"""The collect job: acts with the newest weights and writes its steps to the replay server."""

import contextlib
import functools
import math
import os
import time
import zlib
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

from tflearn.coordinator import reports
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.control import ENV_STEPS_LIMIT, AcquiredLease
from tflearn.coordinator.published_weights import Subscriber
from tflearn.coordinator.reports import CreditReader
from tflearn.coordinator.state import REPLAY as REPLAY_ROLE
from tflearn.coordinator.weights_transport import CoordinatorLost, RequestRefused
from tflearn.core import extensions, life, strategies
from tflearn.core.experience import Experience
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.train_step import set_env_steps
from tflearn.core.types import ActingPolicy, Agent, AgentFactory, EnvironmentFactory
from tflearn.core.waiting import LOG_EVERY_SECS, Jitter, Stopped, wait_until
from tflearn.files.status import Status
from tflearn.jobs import initial_agent, run_contract
from tflearn.jobs.collect_limits import CreditLimit, VersionLimit
from tflearn.jobs.collect_settings import REPORT_SECS, CollectOptions, own_address
from tflearn.jobs.collection import Collection
from tflearn.jobs.run import Run
from tflearn.policies.variables import published_variables
from tflearn.replay.backend import Shards
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter

_FEW_CORES = 4
_STEPS_PER_RUN = 16
_RETRY_SECS, _LOOKUP_SECS = 5.0, 0.5
_STOP_POLL_SECS = 0.02


@checked
def collect(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    num_environments: PositiveInt = 8,
    data_addresses: Sequence[str] = (),
    options: CollectOptions = CollectOptions(),
) -> None:
    """Collects until training is over, the job is stopped, or the run has `options.max_env_steps`.

    Args:
      run: the run, and this collector's name.
      make_environment: makes the run's environment.
      make_agent: makes the run's agent, whose collect policy acts.
      experience: the run's experience settings.
      num_environments: the number of environments stepped together.
      data_addresses: the addresses of the replay servers that share a queue: collector number i,
        which its name ends with, writes to server i modulo their number. () uses those that are
        registered at the coordinator.
      options: how the job explores, and how much it collects.

    Raises:
      TimeoutError: if the server or the learner is not found in time, or the server went down and
        did not return.
      PeerLost: if nothing was heard of the coordinator for too long.
      ValueError: if an argument is out of range, the agent cannot explore as the options say, or
        the server's tables are made for other data or networks.
    """
    if run.is_done():
        return
    status, name = run.status(run.name), run.name
    status.update(f'waiting for the coordinator at {run.coordinator.address}')
    use_threads()
    try:
        with contextlib.ExitStack() as ending:
            # What acts: the agent's collect policy, in environments of this process.
            environment = make_environment(num_environments=num_environments, seed=_set_seed(options.seed, name))
            ending.callback(environment.close)
            agent, storage = initial_agent.make_for_data(make_agent, environment.specs, experience)
            served = _served(agent, options, run, ending)
            collection = Collection(environment, agent.collect_policy, options, experience, name, served)
            # Whom it acts for: the run's coordinator takes it in if its data and networks are the
            # run's.
            connected = Coordinator(run.coordinator, name, run.stop)
            ending.callback(connected.close)
            contract = run_contract.contract(agent, storage)
            connected.join(Role('collect', contract=contract), run.connect_timeout_secs)
            servers = _Servers(connected, own_address(data_addresses, name))
            servers.wait(storage, run)
            # With what it acts: the learner's weights, once there are some.
            variables = published_variables(agent.collect_policy)
            weights = Subscriber(connected, variables, agent.train_step_counter, run.stop)
            ending.callback(weights.close)
            status.update('waiting for weights from the learner')
            weights.wait(run.connect_timeout_secs)
            collector = _Collector(run, status, connected, servers, storage, collection, weights, options)
            ending.callback(collector.close)
            limit = _limit(options, experience, connected, collector.acquired_lease, ending)
            # For a queue, whose data should be new, it checks for newer weights before each step.
            steps = 1 if limit or not experience.replay.learns_from_old_items else _STEPS_PER_RUN
            collector.run(limit, steps)
        status.update('stopped' if run.stop.is_set() else 'finished')
    except Stopped as stopped:
        logging.info('%s', stopped)
        status.update('stopped' if run.stop.is_set() else 'finished')
    except BaseException as error:
        status.update(f'failed: {error}')
        raise


class _Servers:
    """The replay servers that a collector writes to, in its order."""

    def __init__(self, coordinator: Coordinator, own: str | None):
        """Asks nobody yet; `own` is the collector's only server, None those that are registered."""
        self._coordinator, self._own = coordinator, own
        self._known: tuple[str, ...] = () if own is None else (own,)
        self._ask_at = 0.0

    def __call__(self) -> Sequence[str]:
        """Returns those that are known by now."""
        if self._own is None and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + _LOOKUP_SECS
            with contextlib.suppress(CoordinatorLost, RequestRefused):  # those that are known stay
                if any(found := self._coordinator.addresses(REPLAY_ROLE)):
                    self._known = Shards(tuple(found)).ranked(self._coordinator.name)
        return self._known

    def wait(self, storage: Storage, run: Run) -> None:
        """Waits for a replay server; raises as `wait_until` does."""
        what = f'a replay server of {self._coordinator.what}'
        wait_until(self, what, run.connect_timeout_secs, run.stop)
        if len(self._known) == 1:  # of several any will do
            Shards(self._known).wait(storage, run.connect_timeout_secs, run.stop)


def _served(agent: Agent, options: CollectOptions, run: Run, ending: contextlib.ExitStack) -> ActingPolicy | None:
    """Returns the served collect policy; None if the options name no server."""
    if options.served_at is None:
        return None
    remote_policy = extensions.load('policy_client').RemotePolicy
    policy = remote_policy(
        options.served_at, 'collect_policy', agent.collect_policy, None, run.connect_timeout_secs, run.stop
    )
    ending.callback(policy.close)
    return policy


def use_threads() -> None:
    """Computes each operation in one thread where a learner needs the other cores;
    a policy's batch is small.

    TensorFlow's own variable overrides it.
    """
    if (os.cpu_count() or 1) <= _FEW_CORES and 'TF_NUM_INTRAOP_THREADS' not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has started in this process
            strategies.use_threads(None, intra_op=1)


def _set_seed(seed: int | None, name: str) -> int | None:
    """Sets TensorFlow's seed to the collector's own one and returns it;
    None if there is no seed.
    """
    if seed is None:
        return None
    mixed = (seed + zlib.crc32(name.encode())) % 2**31
    tf.random.set_seed(mixed)
    return mixed


def _limit(
    options: CollectOptions,
    experience: Experience,
    coordinator: Coordinator,
    acquired_lease: AcquiredLease,
    ending: contextlib.ExitStack,
) -> VersionLimit | CreditLimit | None:
    if experience.versions_ahead is not None:
        reader = CreditReader(coordinator)
        ending.callback(reader.close)
        return CreditLimit(acquired_lease, lambda: reader.newest)
    if options.episode_limit is None:
        return None
    episodes = options.episode_limit
    secs = episodes.collect_at_least_every_secs
    return VersionLimit(episodes.max_episodes_per_version, secs, episodes.versions_ahead)


class _Collector:
    """Acts with the newest weights, writes the steps, and reports to the learner,
    the status file and the log.
    """

    def __init__(
        self,
        run: Run,
        status: Status,
        coordinator: Coordinator,
        servers: Callable[[], Sequence[str]],
        storage: Storage,
        collection: Collection,
        weights: Subscriber,
        options: CollectOptions,
    ):
        """Opens the stream to the replay server; takes no step.

        Args:
          run: the run, and the collector's name.
          status: the job's status.
          coordinator: the coordinator, which has taken the collector in.
          servers: returns the replay servers that are known.
          storage: the replay tables' layout.
          collection: takes the steps.
          weights: the learner's weights.
          options: the job's options.
        """
        self._stop, self._status, self._coordinator = run.stop, status, coordinator
        self._collection, self._weights, self._options = collection, weights, options
        num_environments = collection.num_environments
        self._reporter = reports.Reporter(coordinator, num_environments, options.lease_secs)
        self._reports_episodes = options.reports_metrics(run.name)
        self._jitter = Jitter(f'{run.name}/reports')
        self._logged_at = time.monotonic()
        self._report_at = -math.inf
        self._waits = False  # for newer weights
        # Since its newest step, for newer weights or for environment steps.
        self._has_rested = False
        # The last part: while it waits for its server it asks `_keep_waiting`, which reports once
        # there is a writer.
        self._is_open = False
        self._writer = ReplayWriter(
            servers, storage, num_environments, run.stop, self._keep_waiting, run.connect_timeout_secs
        )
        self._is_open = True

    @property
    def acquired_lease(self) -> AcquiredLease:
        """The collector's lease."""
        return self._reporter.acquired_lease

    def run(self, limit: VersionLimit | CreditLimit | None, steps_per_check: int) -> None:
        """Collects until training is over, the job is stopped, or the run has `max_env_steps`.

        Args:
          limit: what makes it wait for newer weights; None does not.
          steps_per_check: batched steps between two looks for newer weights.
        """
        writer, metrics, weights = self._writer, self._collection.metrics, self._weights
        acted = weights.newest.policy_version
        while self._pull() and not self._stop.is_set():
            count = writer.num_complete_sequences if isinstance(limit, CreditLimit) else metrics.episodes
            if limit and limit.update(weights.newest.policy_version, count):
                self._await_weights(writer)
                continue
            if self._num_allowed <= 0:
                if self._await_steps():
                    writer.flush()
                    return
                continue
            version = weights.newest.policy_version
            if isinstance(limit, CreditLimit) and self._has_rested and version > acted + 1:
                # Others acted meanwhile: new items must not hold steps of an older policy.
                writer.begin_with_next()
            acted = version
            self._act(writer, steps_per_check)
            self.report_if_due('waiting for simulators' if self._collection.waits else 'running')

    def _await_weights(self, writer: ReplayWriter) -> None:
        if not self._waits:  # the learner should get everything that these weights collected
            writer.flush_to_learner()
        self._waits = self._has_rested = True
        self.report_if_due('waiting for newer weights')
        self._weights.wait_for_next(_STOP_POLL_SECS)

    def _await_steps(self) -> bool:
        """Asks for a part of what is left of `max_env_steps`. Returns whether all were taken."""
        if self._waits or not self._has_rested:  # it did not need any, or has taken its part
            self._report_at = -math.inf
        self._waits, self._has_rested = False, True
        self.report_if_due('waiting for the rest of max_env_steps')
        if self._reporter.env_steps_left > 0:
            if self._num_allowed <= 0:
                self._weights.wait_for_next(_STOP_POLL_SECS)
            return False
        logging.info('the collectors have taken max_env_steps=%d: collection ends', self._options.max_env_steps)
        return True

    @property
    def _num_allowed(self) -> float:
        """How many environment steps it may take now:
        of `max_env_steps` the coordinator allows a part at a time.
        """
        if self._options.max_env_steps is None:
            return math.inf
        return self._reporter.allowed_env_steps - self._collection.metrics.env_steps

    def _act(self, writer: ReplayWriter, num_steps: int) -> None:
        self._waits = self._has_rested = False
        newest = self._weights.newest
        write = functools.partial(writer, policy_version=newest.policy_version)
        # Simulators may be slow: weights are to be refreshed, and leases renewed, all the same.
        until = time.monotonic() + REPORT_SECS
        with life.reported(self._report_within_step):
            for _ in range(num_steps):
                self._collection.run(1, write, newest.env_steps, newest.train_step)
                if time.monotonic() >= until or self._num_allowed <= 0:
                    break

    def _report_within_step(self) -> None:
        self.report_if_due('running')
        if self._stop.is_set():
            raise Stopped('stopped within a step of the environments')

    def _pull(self) -> bool:
        """Assigns new weights if there are any. Returns whether training continues."""
        if self._weights.pull():
            set_env_steps(self._weights.newest.env_steps)
        return not self._weights.newest.finished

    def _keep_waiting(self) -> bool:
        """Returns whether a blocked write should wait on;
        reports meanwhile, which renews the lease.
        """
        if self._is_open:
            self.report_if_due('running')
        return self._pull()

    def report_if_due(self, state: str) -> None:
        """Reports once a second on average, and logs every ten seconds;
        `state` is what the collector does now.

        Raises:
          PeerLost: if nothing was heard of the coordinator for too long.
        """
        now = time.monotonic()
        if now >= self._report_at:
            pause = REPORT_SECS if self._report(state) else _RETRY_SECS if self._coordinator.is_silent else REPORT_SECS
            self._coordinator.check(
                'collecting continues with the newest weights', self._options.server_timeout_secs, self._line()
            )
            self._report_at = time.monotonic() + self._jitter.next(pause)
        if now - self._logged_at >= LOG_EVERY_SECS:
            logging.info('%s: %s', state, self._line())
            self._logged_at = now

    def close(self) -> None:
        """Sends a last report."""
        self._report('running')
        logging.info('collected %s', self._line())

    def _counts(self) -> dict[str, float]:
        metrics = self._collection.metrics
        return {
            'env_steps': metrics.env_steps,
            'episodes': metrics.episodes,
            'dropped_episodes': metrics.dropped_episodes,
            **self._collection.failures,
            'lost_steps': self._writer.lost_steps,
            'unused_steps': self._writer.unused_steps,
            **self._collection.secs,
        }

    def _report(self, state: str) -> bool:
        metrics, episodes = self._collection.metrics, self._collection.metrics.drain()
        acquired_lease = self._reporter.acquired_lease
        acquired_lease.begin_if_expired(self._writer.num_complete_sequences)
        delivered = max(0, self._writer.num_confirmed_sequences - acquired_lease.began_at)
        most = self._options.max_env_steps
        # One that waits for the learner leaves its part of the rest to others, so that the learner
        # gets data.
        limit = {} if most is None or self._waits else {ENV_STEPS_LIMIT: most}
        counts, version = {**self._counts(), **limit}, self._weights.newest.policy_version
        is_sent = self._reporter.report(counts, episodes if self._reports_episodes else [], delivered, max(0, version))
        self._status.update(
            state,
            **self._counts(),
            **metrics.means(),
            env_steps_per_sec=metrics.env_steps_per_sec,
            policy_version=version,
            random_actions=self._collection.random,
        )
        return is_sent

    def _line(self) -> str:
        metrics = self._collection.metrics
        mean_return = 'none' if metrics.mean_return is None else f'{metrics.mean_return:.1f}'
        counts = self._counts()
        names = ('dropped_episodes', 'rebuilt_environments', 'overruns', 'lost_steps', 'unused_steps')
        failures = ''.join(f', {counts[name]} {name.replace("_", " ")}' for name in names if counts.get(name))
        return (
            f'{metrics.env_steps} environment steps ({metrics.env_steps_per_sec:.0f}/s), {metrics.episodes} episodes, '
            f'mean return {mean_return}, policy version {self._weights.newest.policy_version}{failures}'
        )
