"""Drop-in for `tf_agents.train.ppo_learner.PPOLearner`:
each `run` trains on all of its own sequences only.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.extensions.tf_agents import programs
from tflearn.extensions.tf_agents.gin_names import PPO_LEARNER, in_place_of
from tflearn.extensions.tf_agents.tf_agents_learner import DatasetFn, Learner, Trigger

_NO_LIMIT = 1 << 62  # train steps; the end of the data ends the call


def minibatches(
    make_sequences: Callable[[], tf.data.Dataset],
    num_replicas: int,
    num_sequences: int,
    num_epochs: int,
    size: int | None,
    shuffle_buffer_size: int | None,
) -> tf.data.Dataset:
    """Returns the dataset of one iteration; each iterator over it is a new iteration.

    Args:
      make_sequences: returns a dataset of nests of tensors [B, T, ...]. It may be traced.
      num_replicas: replicas that this dataset feeds; the number of minibatches is a multiple of it.
      num_sequences: elements of the sequences' dataset in an iteration.
      num_epochs: passes over them.
      size: steps of a minibatch, from all passes together; None: the elements are the minibatches.
      shuffle_buffer_size: size of the shuffle buffer [steps].

    Returns:
      Nests of tensors [size, 1, ...]: as many full minibatches as the steps of all passes make.
    """

    def iteration(_: tf.Tensor) -> tf.data.Dataset:
        passes = make_sequences().take(num_sequences).cache().repeat(num_epochs)
        if size is None:
            return passes.take(num_sequences * num_epochs // num_replicas * num_replicas)
        steps = passes.unbatch().unbatch().shuffle(shuffle_buffer_size)
        whole = steps.batch(1, drop_remainder=True).batch(size, drop_remainder=True)
        return whole if num_replicas == 1 else whole.batch(num_replicas, drop_remainder=True).unbatch()

    # Within flat_map, since TensorFlow would share the cache among the iterators of a dataset.
    return tf.data.Dataset.range(1).flat_map(iteration)


@in_place_of(PPO_LEARNER)
class PPOLearner(Learner):
    """Trains a PPO agent: `num_epochs` passes over `num_samples` fresh samples with each `run`.

    `num_frames_for_training`, int32 scalar, is the number of steps in the normalization data of the
    last `run`.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        train_step: tf.Variable,
        agent: Any,
        experience_dataset_fn: DatasetFn,
        normalization_dataset_fn: DatasetFn,
        num_samples: int,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_buffer_size: int | None = None,
        after_train_strategy_step_fn: Callable[..., Any] | None = None,
        triggers: Sequence[Trigger] | None = None,
        checkpoint_interval: int | None = 100000,
        summary_interval: int | None = 1000,
        use_kwargs_in_agent_train: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        **learner_arguments: Any,
    ):
        """Traces the train step and restores the newest checkpoint.

        Args:
          agent: a `PPOAgent` with update_normalizers_in_train=False and, for minibatches,
            compute_value_and_advantage_in_train=False.
          experience_dataset_fn: returns a dataset of (Trajectory [B, T, ...], sample_info) to train
            on; each `run` makes an iterator over it, within `tf.data`.
          num_samples: elements of these datasets that a `run` takes.
          minibatch_size: steps of a minibatch; None trains on the sequences as they are, as RNNs
            need.
          shuffle_buffer_size: size of the shuffle buffer [steps]; needed for minibatches.
          **learner_arguments: other arguments of `Learner`, which TF-Agents' PPOLearner does not
            have.

        Raises:
          ValueError: if the arguments contradict each other.
        """
        _check(agent, minibatch_size, shuffle_buffer_size)
        given = num_samples, num_epochs, minibatch_size, shuffle_buffer_size

        def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            return minibatches(lambda: programs.call_dataset_fn(experience_dataset_fn, context), replicas, *given)

        super().__init__(
            root_dir,
            train_step,
            agent,
            dataset_fn,
            after_train_strategy_step_fn,
            triggers,
            checkpoint_interval,
            summary_interval,
            use_kwargs_in_agent_train=use_kwargs_in_agent_train,
            strategy=strategy,
            **learner_arguments,
        )
        self._num_samples, self.num_replicas = num_samples, self.strategy.num_replicas_in_sync
        self.num_frames_for_training = tf.Variable(0, dtype=tf.int32)
        normalization = tf.data.experimental.Counter().flat_map(lambda _: normalization_dataset_fn())
        self._normalization_iterator = iter(normalization)
        self._update = tf.function(self._update_normalizers, autograph=False)

    def run(self, parallel_iterations: int = 10) -> Any:  # type: ignore[override]  # as TF-Agents'
        """Updates the normalizers, trains on fresh samples until all are used,
        then calls the triggers.

        Raises:
          ValueError: if the samples are too few for one minibatch on each replica.
        """
        del parallel_iterations  # has no effect
        self.num_frames_for_training.assign(self._update(self._normalization_iterator))
        _, last = self._take(_NO_LIMIT, self.new_iterator())
        if last is None:
            raise UserValueError(
                f'Cannot distribute {int(self.num_frames_for_training)} frames across {self.num_replicas} replicas: '
                'need at least one minibatch for each; increase num_samples, or make minibatch_size smaller'
            )
        return last

    def _update_normalizers(self, iterator: Any) -> tf.Tensor:
        """Updates the normalizers; returns the number of steps."""

        def one(i: tf.Tensor, num_frames: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            trajectory, _ = next(iterator)
            self._agent.update_observation_normalizer(trajectory.observation)
            self._agent.update_reward_normalizer(trajectory.reward)
            return i + 1, num_frames + tf.reduce_prod(tf.shape(trajectory.reward)[:2])

        start = tf.constant(0), tf.constant(0)
        return tf.while_loop(lambda i, _: i < self._num_samples, one, start)[1]


def _check(agent: Any, minibatch_size: int | None, shuffle_buffer_size: int | None) -> None:
    if agent.update_normalizers_in_train:
        raise UserValueError('got an agent with update_normalizers_in_train=True; need False: PPOLearner updates them')
    if not minibatch_size:
        return
    if shuffle_buffer_size is None:
        raise UserValueError(f'got minibatch_size={minibatch_size} without shuffle_buffer_size; need both')
    if tf.nest.flatten(agent.collect_policy.policy_state_spec):
        raise UserValueError(f'got minibatch_size={minibatch_size} for an RNN, which needs sequences; need None')
    if 'advantage' not in agent.training_data_spec.policy_info:
        raise UserValueError(
            f'got minibatch_size={minibatch_size} and an agent with compute_value_and_advantage_in_train=True; need '
            'False, as advantages cannot be computed from single steps'
        )
