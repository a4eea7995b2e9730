"""What a run does with recorded episodes besides the steps that it collects itself:
settings, and what they need.
"""

from typing import Annotated

from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Schedule
from tflearn.core.settings import NonNegativeInt, PositiveInt, Range, checked_dataclass
from tflearn.core.types import AgentFactory
from tflearn.data.reader import Dataset

_ALONE = 'train on demonstrations alone with num_pretrain_steps, or with the job train_offline'


@checked_dataclass(frozen=True)
class Demonstrations:
    """Recorded episodes that a run trains on besides the steps that it collects itself.

    The learner holds them in memory (at most `max_mirror_gb` of the replay) to the end of the run,
    and draws them uniformly, with a weight of 1 where the run's own items are drawn by priority.

    Attributes:
      dataset: the episodes.
      share: the share of demonstrations in each batch, at least 0 and below 1, rounded to items of
        a replica's batch; or a schedule of the train step. Only the other items count for
        `samples_per_insert`.
      num_pretrain_steps: the run's first train steps, which are on demonstrations alone; collection
        begins after them. They count for `num_train_steps` and for schedules.
      fill_replay: whether the replay begins with the episodes. There they are drawn and removed
        like all others; they count for `min_size`, but not for `samples_per_insert`.
    """

    dataset: Dataset
    share: Annotated[float, Range(least=0, below=1, advice=_ALONE)] | Schedule = 0.25
    num_pretrain_steps: NonNegativeInt = 0
    fill_replay: bool = False

    def __post_init__(self) -> None:
        if not (self.are_drawn or self.fill_replay):
            raise UserValueError(
                f'got Demonstrations.share={self.share} with num_pretrain_steps=0 and fill_replay=False, so that no '
                'episode would be used; need one of them'
            )

    @property
    def are_drawn(self) -> bool:
        """Whether batches have demonstrations, apart from those in the replay."""
        return callable(self.share) or self.share > 0 or self.num_pretrain_steps > 0

    def check(self, experience: Experience) -> None:
        """Raises a ValueError if such an experience cannot have demonstrations,
        or a batch has no room for them.
        """
        replay, size = experience.replay, experience.per_replica_batch_size
        if not replay.learns_from_old_items:
            raise UserValueError(
                f'got Initial.demonstrations with Experience.replay={replay!r}; need Uniform(...) or Prioritized(...), '
                'since recorded episodes are no part of a queue; to train on them first, set Initial.cloning'
            )
        if replay.sampling == 'server' or replay.max_times_sampled:
            raise UserValueError(
                f'got Initial.demonstrations with Experience.replay={replay!r}; need Uniform(...) or Prioritized(...) '
                "that the learner draws from (sampling 'auto' or 'learner', max_times_sampled=0), or no demonstrations"
            )
        if experience.slicing.cross_episodes:
            raise UserValueError(
                'got Initial.demonstrations with Slicing.cross_episodes, but recorded episodes do not follow each '
                'other; need cross_episodes=False'
            )
        if not callable(self.share) and self.share > 0 and not 1 <= round(size * self.share) < size:
            raise UserValueError(
                f'got Demonstrations.share={self.share} for batches of {size} items on each replica, of which '
                f'{round(size * self.share)} would be demonstrations; need at least one item of both kinds'
            )

    def check_mirrored(self, mirrored: bool) -> None:
        """Raises a ValueError if the learner does not draw from its own memory."""
        if not mirrored:
            raise UserValueError(
                'got Initial.demonstrations with a replay that the server draws from, because of its sequences or its '
                "size; need one that fits into the learner's memory; set sampling='learner' of the replay, or a "
                'smaller max_size'
            )


@checked_dataclass(frozen=True)
class Cloning:
    """Behavioural cloning of recorded episodes, with whose policy a run of another agent begins,
    such as PPO.

    The train job clones before it trains, while collectors wait; the policies' variables need equal
    names and shapes, so the networks' options are bound once, for both agents. It is done when the
    run has a checkpoint.

    Attributes:
      dataset: the episodes.
      make_agent: makes the agent that clones, such as `agents.bc.make_agent`.
      num_train_steps: its train steps, which do not count for the run.
      experience: its experience settings, with `Uniform`.
    """

    dataset: Dataset
    make_agent: AgentFactory
    num_train_steps: PositiveInt = 5_000
    experience: Experience = Experience(batch=BatchItems(256))

    def __post_init__(self) -> None:
        if not self.experience.replay.draws_uniformly:
            raise UserValueError(f'got Cloning.experience with replay={self.experience.replay!r}; need Uniform(...)')
