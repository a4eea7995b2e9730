"""Rounds: a program collects sequences with the newest policy, the learner trains on them, and the next round begins.

For data that no collector of ours makes: a compiler that compiles modules, a placer, a simulator in another process.
Sequences may have different lengths, and rounds different numbers of them.
"""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core import host_values, strategies
from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.core.experience import Experience, Iteration, Queue, Reuse
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import WEIGHTS, Agent, zeros
from tflearn.learner import agent_data
from tflearn.learner import row_sequences as rows
from tflearn.learner.learner import Learner
from tflearn.learner.metrics import TrainResult

_MAX_DRAW_STEPS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Round:
    """What a round did.

    Attributes:
      number: counted from 1, over all sessions of a run.
      num_sequences: sequences that were collected.
      num_steps: their steps, without those between two episodes and, with an `Iteration`, the last ones of sequences
        that are not ended.
      mean_return: the mean of the sequences' sums of rewards.
      collect_secs: how long the collector took [seconds].
      result: what the learner did with them.
    """

    number: int
    num_sequences: int
    num_steps: int
    mean_return: float
    collect_secs: float
    result: TrainResult


def train_round(
    learner: Learner, source: 'RoundSource', sequences: Iterable[Any], max_train_steps: int | None = None
) -> Round:
    """Trains on the sequences of one round, until they are used up or for `max_train_steps`, and writes its metrics.

    Args:
      learner: a learner of this source. Its triggers are called once, after the round.
      source: the source of the learner's batches.
      sequences: see `RoundSource.begin`.
      max_train_steps: the maximum number of train steps; None has no limit.

    Raises:
      ValueError: if the sequences do not fit the agent, or there are too few for one train step.
    """
    start = time.perf_counter()
    given = list(sequences)
    return _train(learner, source, given, time.perf_counter() - start, max_train_steps)


def _train(
    learner: Learner, source: 'RoundSource', sequences: Sequence[Any], secs: float, max_train_steps: int | None
) -> Round:
    """Trains on a round that took `secs` seconds to collect."""
    source.begin(sequences)
    wanted = source.steps_left if max_train_steps is None else min(source.steps_left, max_train_steps)
    result = learner.run(wanted)
    counts = source.counts
    done = Round(source.num_rounds, counts['sequences'], counts['steps'], counts['mean_return'], secs, result)
    learner.summarize({f'round/{name}': value for name, value in {**counts, 'collect_secs': secs}.items()})
    logging.info(
        'round %d: %d sequences of %d steps, mean return %.2f, %d train steps, loss %.4g',
        done.number,
        done.num_sequences,
        done.num_steps,
        done.mean_return,
        result.num_steps,
        result.loss,
    )
    return done


@checked
def train_rounds(
    learner: Learner,
    source: 'RoundSource',
    collect: Callable[[int], Iterable[Any]],
    num_rounds: PositiveInt,
    hooks: Sequence[Callable[[Round], object]] = (),
    max_train_steps: PositiveInt | None = None,
) -> list[Round]:
    """Collects and trains in rounds; a resumed run goes on with the round after its checkpoint's.

    Args:
      learner: a learner of this source, which the caller closes.
      source: the source of the learner's batches.
      collect: called with the round's number, counted from 1; returns or yields its sequences, see `RoundSource.begin`.
        If it has none, the data have ended, and so does training.
      num_rounds: the run's rounds, over all sessions.
      hooks: called, in this order, after each round, when the learner's triggers were called.
      max_train_steps: the maximum number of train steps of a round; None has no limit.

    Returns:
      The rounds of this session.
    """
    done: list[Round] = []
    while source.num_rounds < num_rounds:
        start = time.perf_counter()
        sequences = list(collect(source.num_rounds + 1))
        secs = time.perf_counter() - start
        if not sequences:
            logging.info('the data ended after %d of %d rounds', source.num_rounds, num_rounds)
            break
        done.append(_train(learner, source, sequences, secs, max_train_steps))
        for hook in hooks:
            hook(done[-1])
    return done


class RoundSource(tf.train.experimental.PythonState):
    """A `BatchSource` of the sequences of one round at a time.

    With an `Iteration`, the agent prepares all sequences of a round once (PPO: returns and advantages over complete
    episodes), and train steps take shuffled minibatches of their steps, in several epochs; the last minibatches of an
    epoch are filled up with steps of weight 0. Otherwise each sequence, or each step for an agent of single steps, is
    trained on once, in a shuffled order, and what is left over after the last complete batch is counted.

    Its state in a checkpoint is the number of rounds; a `Learner` of it saves that.

    Attributes:
      num_rounds: rounds begun so far, over all sessions.
      counts: of the newest round: sequences, steps, mean_return, left_out (sequences, or single steps).
      has_rounds: the end of a round is not the end of the data.
    """

    max_draw_steps, error, has_rounds = _MAX_DRAW_STEPS, None, True

    def __init__(
        self, agent: Agent, experience: Experience, strategy: tf.distribute.Strategy | None = None, seed: int = 0
    ):
        """Traces the agent's preparation.

        Args:
          agent: made within the strategy's scope.
          experience: a `Queue`, with an `Iteration` or nothing as its training; otherwise the batch's size counts. The
            slicing has no meaning, except for its `sequence_length` where the agent needs one.
          strategy: the learner's strategy; default: the current one.
          seed: the seed of the order.

        Raises:
          ValueError: if the agent cannot be trained in such rounds.
        """
        agent_data.check(agent, agent.train_step_counter, experience)
        self._strategy, self._seed = strategy or tf.distribute.get_strategy(), seed
        self._replicas = self._strategy.num_replicas_in_sync
        self._iteration = _iteration(experience)
        self._pads = hasattr(agent, 'prepare')
        self._spec, self._kind = agent.collect_data_spec, type(agent).__name__
        if self._iteration and getattr(agent, 'trains_on_sequences', False):
            raise UserValueError(
                f'got a {self._kind} with memory for rounds with an Iteration; need one without, since '
                'minibatches are of single steps; leave lstm_size out'
            )
        _check_replicas(self._strategy, bool(self._iteration) and not self._pads, self._kind)
        self._size = experience.per_replica_batch_size * self._replicas
        if self._iteration:
            self._size = -(-self._iteration.minibatch_steps // self._replicas) * self._replicas
            prepare = agent_data.preparation(agent)
            join = functools.partial(_joined, self._strategy)

            def run(data: Any) -> Any:
                parts = host_values.divided(self._strategy, data, self._replicas)
                return tf.nest.map_structure(join, self._strategy.run(prepare, (parts,)))

            self._prepare = tf.function(run, autograph=False, reduce_retracing=not self._pads)
        self._single = not self._iteration and agent_data.own_length(agent) == 1
        self._preprocess = None if self._iteration else agent_data.preprocessing(agent)
        self.num_rounds, self.steps_left = 0, 0
        self.counts: dict[str, Any] = {}
        self._length = agent_data.own_length(agent)
        self._make_variables()

    def serialize(self) -> str:
        """Returns the number of rounds as JSON."""
        return json.dumps({'num_rounds': self.num_rounds})

    def deserialize(self, string_value: str) -> None:
        """Restores the number of rounds of a checkpoint."""
        self.num_rounds = json.loads(string_value)['num_rounds']

    def begin(self, sequences: Iterable[Any]) -> None:
        """Begins a round; what is left of the one before is dropped.

        Args:
          sequences: Trajectories of arrays [T, ...] of the agent's `collect_data_spec`, T >= 2 (T >= 1 if they are
            ended). A sequence ends with its episode (the last row's next step type is LAST, or the row after that
            follows too), or else its last row is used only for its observation's value.

        Raises:
          ValueError: if one of them does not fit the agent, or there are too few for one train step.
        """
        given = [self._checked(sequence, i) for i, sequence in enumerate(sequences)]
        if not given:
            raise UserValueError('got a round without sequences; need at least one; end training instead')
        elements = self._elements(given)
        number = len(tf.nest.flatten(elements)[0])
        if not number:
            raise UserValueError('got a round without a step to train on; need steps that are not between two episodes')
        order = self._order_of(number)
        self.num_rounds += 1
        self.steps_left = len(order)
        valid = [np.asarray(sequence.next_step_type) != ts.StepType.FIRST for sequence in given]
        returns = [np.sum(sequence.reward[steps]) for sequence, steps in zip(given, valid, strict=True)]
        self.counts = {
            'sequences': len(given),
            'steps': number if self._iteration else int(sum(steps.sum() for steps in valid)),
            'mean_return': float(np.mean(returns)),
            'left_out': 0 if self._iteration else number - order.size,
        }
        with tf.device('CPU:0'):
            tf.nest.map_structure(lambda column, new: column.assign(new), self._columns, elements)
            self._order.assign(order)
            self._next.assign(0)

    def grant(self, num_steps: int) -> int:
        """See `BatchSource`: as many as the round still has.

        Raises:
          RuntimeError: before the first round.
        """
        if not self.counts:
            raise UserRuntimeError('got train steps before a round; need its sequences; call train_round, or begin')
        granted = min(num_steps, self.steps_left)
        self.steps_left -= granted
        return granted

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the indices of the next batches' elements, int32 [num_steps, size]. For a graph."""
        del seed  # the round has its own order
        with tf.device('CPU:0'):
            start = self._next.read_value()
            with tf.control_dependencies([start]):
                self._next.assign_add(tf.cast(num_steps, tf.int64))
            return self._order[start : start + tf.cast(num_steps, tf.int64)]

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns batch `i` of a draw; with an `Iteration`, also the weights of its steps."""
        with tf.device('CPU:0'):
            indices = tf.gather(drawn, i)
            number = tf.shape(tf.nest.flatten(self._columns)[0])[0]
            valid = tf.minimum(indices, number - 1)
            data = tf.nest.map_structure(lambda column: tf.gather(column, valid), self._columns)
            if not self._iteration:
                return self._preprocess(data) if self._preprocess else data, {}
            samples, weights = data
            exists = tf.reshape(indices < number, [-1, *[1] * (weights.shape.rank - 1)])
            return samples, {WEIGHTS: tf.where(exists, weights, 0.0)}

    def metrics(self) -> dict[str, Any]:
        """Returns `num_rounds`."""
        return {'num_rounds': self.num_rounds}

    def close(self) -> None:
        """Ends the round."""
        self.steps_left = 0

    def _make_variables(self) -> None:
        length = self._length or 2
        if self._iteration:  # traced, not run: it would add the zeros to the agent's normalizers
            example = zeros(self._spec, (self._replicas, length))
            elements = self._prepare.get_concrete_function(example).structured_outputs
        else:
            elements = zeros(self._spec, (1, length))

        def variable(like: tf.Tensor) -> tf.Variable:
            empty = tf.zeros([0, *like.shape[1:]], like.dtype)
            return tf.Variable(empty, trainable=False, shape=tf.TensorShape([None, *like.shape[1:]]))

        with tf.device('CPU:0'):
            self._columns = tf.nest.map_structure(variable, elements)
            order = np.zeros((0, self._size), np.int32)
            self._order = tf.Variable(order, trainable=False, shape=tf.TensorShape([None, self._size]))
            self._next = tf.Variable(tf.constant(0, tf.int64), trainable=False)

    def _order_of(self, number: int) -> np.ndarray:
        """Returns the elements of the round's batches, int32 [n, size]; those from `number` on fill up minibatches."""
        draws = np.random.default_rng([self._seed, self.num_rounds])
        if self._iteration is None:
            if number < self._size:
                what = 'steps' if self._single else 'sequences'
                raise UserValueError(f'got a round of {number} {what}; need at least {self._size} for one train step')
            order = draws.permutation(number)[: number // self._size * self._size]
            return order.reshape(-1, self._size).astype(np.int32)
        padded = math.ceil(number / self._size) * self._size
        epochs = [draws.permutation(padded) for _ in range(self._iteration.num_epochs)]
        return np.concatenate(epochs).reshape(-1, self._size).astype(np.int32)

    def _checked(self, sequence: Any, i: int) -> Any:
        """Returns a sequence as numpy arrays of the spec's dtypes."""
        try:
            tf.nest.assert_same_structure(sequence, self._spec)
        except (TypeError, ValueError) as error:
            raise UserValueError(
                f'got sequence {i} of another structure than the {self._kind} collects; need {self._spec}'
            ) from error
        cast = lambda leaf, spec: np.asarray(leaf, spec.dtype.as_numpy_dtype)  # noqa: E731
        arrays = tf.nest.map_structure(cast, sequence, self._spec)
        length = len(arrays.step_type) if arrays.step_type.ndim else 0
        for array, spec in zip(tf.nest.flatten(arrays), tf.nest.flatten(self._spec), strict=True):
            if array.shape != (length, *spec.shape):
                raise UserValueError(
                    f'got sequence {i} with {spec.name or "a column"} of the shape {array.shape}; need '
                    f'{(length, *spec.shape)}: {length} rows, as its step type has'
                )
        ends = length and arrays.next_step_type[-1] == ts.StepType.LAST
        if length < (1 if ends else 2):
            raise UserValueError(f'got sequence {i} of {length} rows; need at least 2, or a complete episode')
        return arrays

    def _elements(self, sequences: Sequence[Any]) -> Any:
        """Returns what batches consist of: nests of arrays [N, ...]."""
        if self._iteration:
            return self._samples([rows.with_boundary(sequence) for sequence in sequences])
        if self._single:
            steps = [rows.select(sequence, sequence.next_step_type != ts.StepType.FIRST) for sequence in sequences]
            return tf.nest.map_structure(lambda column: column[:, np.newaxis], rows.concatenated(steps))
        lengths = {len(sequence.step_type) for sequence in sequences}
        if len(lengths) > 1 or self._length not in (None, *lengths):
            raise UserValueError(
                f'got sequences of {min(lengths)} to {max(lengths)} rows for a {self._kind} without an Iteration; need '
                f'{self._length or "equally many"} in each, since they are trained on as they are; cut or pad them'
            )
        return tf.nest.map_structure(lambda *columns: np.stack(columns), *sequences)

    def _samples(self, sequences: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """Returns the prepared steps of sequences [T + 1, ...], and their weights, all above 0."""
        parts = []
        for batch in [rows.padded(sequences, self._replicas)] if self._pads else rows.of_equal_length(sequences):
            prepared = self._prepare(tf.nest.map_structure(tf.constant, batch))
            prepared = tf.nest.map_structure(lambda column: column.numpy(), prepared)
            weights = prepared[1]
            parts.append(rows.select(prepared, weights.reshape(len(weights), -1)[:, 0] > 0))
        return rows.concatenated(parts)


def _iteration(experience: Experience) -> Iteration | None:
    """Returns how the steps of a round become minibatches; None if sequences are trained on as they are."""
    replay = experience.replay
    training = replay.training if isinstance(replay, Queue) else None
    if not isinstance(replay, Queue) or isinstance(training, Reuse):
        raise UserValueError(
            f'got Experience.replay={replay!r} for rounds; need a Queue, with training=Iteration(...) or None'
        )
    return training


def _check_replicas(strategy: tf.distribute.Strategy, preprocesses: bool, kind: str) -> None:
    layout = strategies.layout(strategy)
    if layout.workers > 1 or (preprocesses and layout.replicas > 1):
        raise UserValueError(
            f'got {layout.replicas} replicas on {layout.workers} workers for rounds of a {kind}; need one worker, and '
            'one replica for an agent that prepares sequences by preprocess_sequence'
        )


def _joined(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    """Returns the rows of all replicas [N, ...], of a tensor [B, T, ...] on each."""
    column = tf.concat(strategy.experimental_local_results(value), axis=0)
    return tf.reshape(column, [-1, *column.shape[2:]])
