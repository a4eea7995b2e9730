"""Collection: a collector's environment steps."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging
from tf_agents.policies import tf_policy

from tflearn.actors import exploration
from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.actors.episode_recorder import EpisodeRecorder
from tflearn.core.experience import Experience
from tflearn.core.resumable import Resumable
from tflearn.core.types import ActingPolicy, BatchedEnvironment
from tflearn.jobs.collect_settings import CollectOptions

_NEW_EPISODES = 'a resumed run begins new episodes, and is another one than without the stop'


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
          acting_policy: a policy that acts instead of the agent's collect policy, with the same specs.

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
        self._parts: list[Resumable] = [*observers, self._actor]
        self._refused = self.continues_episodes = False

    @property
    def secs(self) -> dict[str, float]:
        """The parts of its time, see `Actor`."""
        return {name: round(secs, 3) for name, secs in self._actor.secs.items()}

    @property
    def num_environments(self) -> int:
        """The number of environments stepped together."""
        return self._environment.num_environments

    @property
    def num_rebuilt(self) -> int:
        """The number of environments that failed and were rebuilt."""
        return self._environment.num_rebuilt

    def content(self) -> dict[str, Any]:
        """See `Resumable`. 'environment' is None if it cannot be saved."""
        environment = None
        try:
            environment = None if self._refused else pickle.dumps(self._environment.content())  # type: ignore[attr-defined]
        except Exception as error:  # it may be anybody's
            self._refused = True
            logging.warning('got an environment that no checkpoint can hold (%s): %s', error, _NEW_EPISODES)
        return {**super().content(), 'parts': [part.content() for part in self._parts], 'environment': environment}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`; begins new episodes if the environment cannot be restored."""
        super().set_content(content)
        self.continues_episodes = content['environment'] is not None
        try:
            if self.continues_episodes:
                self._environment.set_content(pickle.loads(content['environment']))  # type: ignore[attr-defined]
        except Exception as error:
            self.continues_episodes = False
            logging.warning('could not restore the environment (%s): %s', error, _NEW_EPISODES)
        if self._num_random_steps and not self.random:
            self._actor.set_policy(self._policy)
        if not self.continues_episodes:
            content['parts'][-1]['_time_step'] = None
        for part, own in zip(self._parts, content['parts'], strict=True):
            part.set_content(own)

    def run(self, num_steps: int, write: Callable[[Any], None], env_steps_of_run: int = 0, train_step: int = 0) -> None:
        """Takes `num_steps` batched steps; fewer if the random actions end before.

        Args:
          num_steps: the maximum number of batched steps.
          write: called with the Trajectory of every step, see `Actor`.
          env_steps_of_run: the environment steps that all collectors are known to have taken.
          train_step: the learner's train step, as far as it is known; for environments that follow it.
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
