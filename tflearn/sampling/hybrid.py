"""HybridSource: batches of a run's own steps and of demonstrations that never leave, in shares that may change."""

from typing import Any, Protocol

import tensorflow as tf

from tflearn.core.experience import Scheduled
from tflearn.core.settings import checked
from tflearn.sampling.loaded_episodes import LoadedEpisodes

_STEPS_PER_CALL = 200  # of training before collection, in a process that acts and trains alternately


class OnlineSource(Protocol):
    """What a `HybridSource` needs of the source of a run's own steps: a `ReplayMirror` or a `LocalReplay`.

    Attributes:
      batch_size: sequences of the batches that are granted from now on, which count as samples.
      max_draw_steps: the maximum number of batches in one draw.
      error: why there are no more batches; None if there are.
    """

    batch_size: int
    max_draw_steps: int

    @property
    def error(self) -> Exception | None: ...

    def metrics(self) -> dict[str, Any]: ...

    def grant(self, num_steps: int) -> int: ...

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any: ...

    def batch(self, drawn: Any, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]: ...

    def close(self) -> None: ...


class HybridSource:
    """A `BatchSource` of two: each batch has some items of the run's own replay, and demonstrations for the others.

    How many is decided at each `grant`, so it stays the same during one call of the compiled program. Only items of the
    run's own replay count as its samples. During the first `num_pretrain_steps` train steps all items are
    demonstrations, and the replay may be empty; after them at least one item is not.

    Attributes:
      online: the run's own replay, which is closed with it.
      offline: the demonstrations, whose position belongs in the checkpoint.
      max_draw_steps: the least of both.
    """

    @checked
    def __init__(
        self,
        online: OnlineSource,
        offline: LoadedEpisodes,
        train_step: tf.Variable,
        batch_size: int,
        num_replicas: int = 1,
        share: Scheduled = 0.0,
        num_pretrain_steps: int = 0,
    ):
        """
        Args:
          online: the run's own replay.
          offline: the demonstrations.
          train_step: the learner's train step.
          batch_size: items of one replica's batch.
          num_replicas: the replicas of this process; each gets as many demonstrations.
          share: the share of demonstrations in a batch, or a schedule; it is rounded to items.
          num_pretrain_steps: train steps with demonstrations alone.
        """
        self.online, self.offline, self._train_step = online, offline, train_step
        self._local: Any = online
        self._batch_size, self._num_replicas = batch_size, num_replicas
        self._share, self._num_pretrain_steps = share, num_pretrain_steps
        self.max_draw_steps = min(online.max_draw_steps, offline.max_draw_steps)
        with tf.device('CPU:0'):
            self._sizes = tf.Variable((0, batch_size * num_replicas), dtype=tf.int32, trainable=False)
        self._num_demonstrations = -1
        self._set_sizes()

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """See `LocalReplay.__call__`; only where the run's own replay is one."""
        self._local(trajectory, policy_version)

    @property
    def owed_steps(self) -> int:
        """See `LocalReplay.owed_steps`; before collection, train steps that may be taken at once."""
        left = self._num_pretrain_steps - self._step
        if left > 0:
            return min(left, _STEPS_PER_CALL)
        return self._local.owed_with((self._batch_size - self._count()) * self._num_replicas)

    @property
    def error(self) -> Exception | None:
        """See `BatchSource`."""
        return self.online.error

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the run's own replay, and the share of demonstrations in the newest batches."""
        return {**self.online.metrics(), 'demonstration_share': self._num_demonstrations / self._batch_size}

    def close(self) -> None:
        """See `BatchSource`."""
        self.online.close()
        self.offline.close()

    def grant(self, num_steps: int) -> int:
        """See `BatchSource`. It waits for the run's own items only if these steps need them."""
        self._set_sizes()
        left = self._num_pretrain_steps - self._step
        return self.offline.grant(min(num_steps, left)) if left > 0 else self.online.grant(num_steps)

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> tuple[Any, Any]:
        """See `BatchSource`."""
        online, offline = tf.unstack(self._sizes.read_value())
        return self.online.draw(num_steps, seed, online), self.offline.draw(num_steps, seed, offline)

    def batch(self, drawn: tuple[Any, Any], i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """See `BatchSource`. In each replica's part, the run's own items come first.

        A demonstration has no policy version: in the info it has the mean of the others.
        """
        (own, own_info), (shown, shown_info) = self.online.batch(drawn[0], i), self.offline.batch(drawn[1], i)
        versions = own_info['policy_version']
        total, count = tf.reduce_sum(versions), tf.size(versions, tf.int64)
        mean = total // tf.maximum(count, 1)
        info = {**shown_info, 'policy_version': tf.fill(tf.shape(shown_info['policy_version']), mean)}
        return tf.nest.map_structure(self._joined, (own, own_info), (shown, info))

    def _joined(self, *columns: tf.Tensor) -> tf.Tensor:
        shape = columns[0].shape[1:]
        parts = [tf.reshape(column, [self._num_replicas, -1, *shape]) for column in columns]
        return tf.reshape(tf.concat(parts, axis=1), [self._num_replicas * self._batch_size, *shape])

    @property
    def _step(self) -> int:
        return int(self._train_step.numpy())

    def _count(self) -> int:
        """Returns how many demonstrations a replica's batch has at this train step."""
        step, most = self._step, self._batch_size
        if step < self._num_pretrain_steps:
            return most
        share = self._share(tf.constant(step, tf.int64)) if callable(self._share) else self._share
        return max(0, min(most - 1, round(most * float(share))))

    def _set_sizes(self) -> None:
        """Sets how many items of both kinds the next batches have."""
        count, most = self._count(), self._batch_size
        if count != self._num_demonstrations:
            self._num_demonstrations = count
            self.online.batch_size = (most - count) * self._num_replicas
            self._sizes.assign((self.online.batch_size, count * self._num_replicas))
