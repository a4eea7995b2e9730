"""Collection: a collector's environment steps."""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging
from tf_agents.policies import tf_policy

from tflearn.actors import exploration
from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.actors.episode_recorder import EpisodeRecorder
from tflearn.core import composition
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.resumable import Resumable
from tflearn.core.types import ActingPolicy, BatchedEnvironment, waits_for_episodes
from tflearn.jobs.collect_settings import CollectOptions

_NEW_EPISODES = 'a resumed run begins new episodes, and is another one than without the stop'


class _Bounded(io.BytesIO):
    """Bytes in memory, up to a number of gigabytes."""

    def __init__(self, max_gb: float):
        super().__init__()
        self._max_gb = max_gb

    def write(self, data: Any) -> int:
        """Appends bytes; raises ValueError if there are too many then."""
        if self.tell() + memoryview(data).nbytes > 1e9 * self._max_gb:
            raise UserValueError(f'they hold more than CollectOptions.max_saved_gb={self._max_gb:g} in all')
        return super().write(data)


class Collection(Resumable):
    """An actor that explores as the options say, and its metrics.

    Attributes:
      metrics: the metrics of the episodes.
      random: whether actions are still random.
      continues_episodes: whether `set_content` restored the environment.
    """

    _KEPT = ('random', '_progress')

    def __init__(
        self,
        environment: BatchedEnvironment,
        policy: tf_policy.TFPolicy,
        options: CollectOptions,
        experience: Experience,
        name: str = 'collect_0',
        acting_policy: ActingPolicy | None = None,
    ):
        """Compiles the policies; takes no step.

        Args:
          environment: the environment, which the caller closes.
          policy: the agent's collect policy.
          options: the job's options.
          experience: the run's experience settings.
          name: the collector's name.
          acting_policy: a policy that acts instead of the agent's collect policy, with the same
            specs.

        Raises:
          ValueError: if the policy cannot explore as the options say.
        """
        num_environments = environment.num_environments
        measured = options.episode_metrics
        self.metrics = EpisodeMetrics(num_environments, measured.buffer_size, measured.gamma, lambda: environment.info)
        self._environment = environment
        self._set_progress: Callable[[int, int], None] | None = getattr(environment, 'set_progress', None)
        self._progress = (0, 0)
        self._num_random_steps, self._random_until_trained = options.random_steps(policy, experience)
        self._policy = acting_policy or options.explore(policy, name, num_environments)
        self.random = self._num_random_steps > 0
        first = exploration.uniform(policy) if self.random else self._policy
        observers: list[Any] = [self.metrics]
        if measured.on_episode:
            newest: Callable[[], Any] = lambda: self._actor.time_step  # noqa: E731
            observers.append(EpisodeRecorder(self.metrics, num_environments, name, measured.on_episode, newest))
        self._actor: Actor = Actor(environment, first, observers, experience.slicing.store_policy_state)
        self._parts = [*observers, self._actor]
        self._made_of: Mapping[str, str] = {}
        self._max_saved_gb = options.max_saved_gb
        self._refused = self.continues_episodes = False
        self._last_environment: bytes | None = None

    @property
    def secs(self) -> dict[str, float]:
        """The parts of its time, see `Actor`."""
        return {name: round(secs, 3) for name, secs in self._actor.secs.items()}

    @property
    def waits(self) -> bool:
        """Whether it waits for episodes, such as those of external simulators,
        and there are none.
        """
        return waits_for_episodes(self._environment.info)

    @property
    def num_environments(self) -> int:
        """The number of environments stepped together."""
        return self._environment.num_environments

    @property
    def failures(self) -> dict[str, int]:
        """How many environments failed and were rebuilt and, in real time, how many steps came late."""
        overruns = getattr(self._environment, 'num_overruns', None)
        late = {} if overruns is None else {'overruns': overruns}
        return {'rebuilt_environments': self._environment.num_rebuilt, **late}

    def identify_environment(self) -> None:
        """Finds out what the environment is made of, before its first step, which changes it;
        see `set_content`.
        """
        describe = getattr(self._environment, 'made_of', None)
        self._made_of = describe() if describe else {'batch': type(self._environment).__qualname__}

    def content(self) -> dict[str, Any]:
        """See `Resumable`. 'environment' is None if it cannot be saved."""
        return {
            **super().content(),
            'environment': None if self._refused else self._last_environment or self._saved_environment(),
            'made_of': self._made_of,
        }

    def keep_environment(self) -> None:
        """Keeps the environment's content for `content`: now the caller may close it. No more steps can be taken."""
        self._last_environment = None if self._refused else self._saved_environment()

    def _saved_environment(self) -> bytes | None:
        saved = _Bounded(self._max_saved_gb)
        try:
            pickle.dump(self._environment.content(), saved)  # type: ignore[attr-defined]
        except Exception as error:  # it may be anybody's
            self._refused = True
            logging.warning('got environments that no checkpoint can hold (%s): %s', error, _NEW_EPISODES)
            return None
        return saved.getvalue()

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`; begins new episodes if the environment is another one,
        or cannot be restored.
        """
        self.continues_episodes = self._continue_environment(content)
        if self._num_random_steps and not content['random']:
            self._actor.set_policy(self._policy)
        if not self.continues_episodes:
            content['parts'][-1]['_time_step'] = None
        super().set_content(content)

    def _continue_environment(self, content: Mapping[str, Any]) -> bool:
        """Restores the environment of a checkpoint.
        Returns False, and says why, if new episodes have to begin.
        """
        if content['environment'] is None:
            logging.warning('the checkpoint holds no environment: new episodes begin')
            return False
        # What would be restored is the saved one, whatever was asked for now.
        before = content.get('made_of')  # an earlier version did not save it
        changed = 'of which is not known' if before is None else composition.difference(before, self._made_of)
        if changed:
            logging.warning(
                'got another environment than that of the checkpoint (%s): new episodes begin in it; a replay keeps '
                'the steps of the old one until newer ones replace them',
                changed,
            )
            return False
        try:
            self._environment.set_content(pickle.loads(content['environment']))  # type: ignore[attr-defined]
        except Exception as error:
            logging.warning('could not restore the environment (%s): %s', error, _NEW_EPISODES)
            return False
        return True

    def run(self, num_steps: int, write: Callable[[Any], None], env_steps_of_run: int = 0, train_step: int = 0) -> None:
        """Takes `num_steps` batched steps; fewer if the random actions end before.

        Args:
          num_steps: the maximum number of batched steps.
          write: called with the Trajectory of every step, see `Actor`.
          env_steps_of_run: the environment steps that all collectors are known to have taken.
          train_step: the learner's train step, as far as it is known; for environments that follow
            it.
        """
        progress = (train_step, max(env_steps_of_run, self.metrics.env_steps))
        if self._set_progress and progress != self._progress:
            self._progress = progress
            self._set_progress(*progress)
        if self.random:
            left = self._num_random_steps - max(self.metrics.env_steps, env_steps_of_run)
            if left > 0 and not (self._random_until_trained and train_step > 0):
                num_steps = min(num_steps, -(-left // self._environment.num_environments))
            else:
                self.random = False
                self._actor.set_policy(self._policy)
        self._actor.run(num_steps, write)
