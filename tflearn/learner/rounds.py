"""Rounds: a program collects sequences with the newest policy, the learner trains on them,
and the next round begins.

For data that no collector of ours makes: a compiler that compiles modules, a placer, a simulator in
another process. Sequences may have different lengths, and rounds different numbers of them.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core import agent_data, strategies
from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.core.experience import Experience, Iteration
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import WEIGHTS, Agent, zeros
from tflearn.learner.learner import Learner
from tflearn.learner.metrics import TrainResult
from tflearn.replay.sequence_rule import FIRST, LAST, boundary_row
from tflearn.sampling import minibatches
from tflearn.sampling.minibatches import OfSamples
from tflearn.sampling.source import Batch

_MAX_DRAW_STEPS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Round:
    """What a round did.

    Attributes:
      number: counted from 1, over all sessions of a run.
      num_sequences: sequences that were collected.
      num_steps: their steps, without those between two episodes and, with an `Iteration`, the last
        ones of sequences that are not ended.
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
    """Trains on the sequences of one round, until they are used up or for `max_train_steps`,
    and writes its metrics.

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
    """Collects and trains in rounds; a resumed run continues with the round after that of its checkpoint.

    Args:
      learner: a learner of this source, which the caller closes.
      source: the source of the learner's batches.
      collect: called with the round's number, counted from 1; returns or yields its sequences, see
        `RoundSource.begin`. If it has none, the data have ended, and so does training.
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


class RoundSource(OfSamples, tf.train.experimental.PythonState):
    """A `Source` of the sequences of one round at a time.

    With an `Iteration`, the agent prepares all sequences of a round once (PPO: returns and
    advantages over complete episodes), and train steps take shuffled minibatches of their steps, in
    several epochs; the last minibatches of an epoch are filled up with steps of weight 0. Otherwise
    each sequence, or each step for an agent of single steps, is trained on once, in a shuffled
    order, and what is left over after the last complete batch is counted.

    Its state in a checkpoint is the number of rounds; a `Learner` of it saves that.

    Attributes:
      num_rounds: rounds begun so far, over all sessions.
      counts: of the newest round: sequences, steps, mean_return, left_out (sequences, or single
        steps).
      has_rounds: the end of a round is not the end of the data.
    """

    max_draw_steps, has_rounds = _MAX_DRAW_STEPS, True

    def __init__(
        self, agent: Agent, experience: Experience, strategy: tf.distribute.Strategy | None = None, seed: int = 0
    ):
        """Traces the agent's preparation.

        Args:
          agent: made within the strategy's scope.
          experience: a `Queue`, with an `Iteration` or nothing as its training; otherwise the
            batch's size counts. The slicing has no meaning, except for its `sequence_length` where
            the agent needs one.
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

            def run(data: Any) -> Any:
                return tf.nest.map_structure(minibatches.flat, minibatches.prepared(self._strategy, prepare, data))

            self._prepare = tf.function(run, autograph=False, reduce_retracing=not self._pads)
        self._single = not self._iteration and agent_data.own_length(agent) == 1
        self._preprocess = None if self._iteration else agent_data.preprocessing(agent)
        self.takes_indices = self._preprocess is None
        self.num_rounds, self.steps_left = 0, 0
        self.counts: dict[str, Any] = {}
        self._length = agent_data.own_length(agent)
        if self._iteration:  # traced, not run: it would add the zeros to the agent's normalizers
            example = zeros(self._spec, (self._replicas, self._length or 2))
            elements = self._prepare.get_concrete_function(example).structured_outputs
        else:
            elements = zeros(self._spec, (1, self._length or 2))
        self._allocate(elements, self._size, None, None)

    def serialize(self) -> str:
        """Returns the number of rounds as JSON."""
        return json.dumps({'num_rounds': self.num_rounds})

    def deserialize(self, string_value: str) -> None:
        """Restores the number of rounds of a checkpoint."""
        self.num_rounds = json.loads(string_value)['num_rounds']

    def begin(self, sequences: Iterable[Any]) -> None:
        """Begins a round; what is left of the one before is dropped.

        Args:
          sequences: Trajectories of arrays [T, ...] of the agent's `collect_data_spec`, T >= 2 (T
            >= 1 if they are ended). A sequence ends with its episode (the last row's next step type
            is LAST, or the row after that follows too), or else its last row is used only for its
            observation's value.

        Raises:
          ValueError: if one of them does not fit the agent, or there are too few for one train
            step.
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
        self._set(elements, order)

    def grant(self, num_steps: int) -> int:
        """See `Source`: as many as the round still has.

        Raises:
          RuntimeError: before the first round.
        """
        if not self.counts:
            raise UserRuntimeError('got train steps before a round; need its sequences; call train_round, or begin')
        granted = min(num_steps, self.steps_left)
        self.steps_left -= granted
        return granted

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> Batch:
        """Returns batch `i` of a draw; with an `Iteration`, also the weights of its steps."""
        with tf.device('CPU:0'):
            data, weigh = self._samples(drawn, i)
            if self._iteration:
                return data[0], {WEIGHTS: weigh(data[1])}
            return self._preprocess(data) if self._preprocess else data, {}

    def state(self) -> dict[str, Any]:
        """See `Source`."""
        return {'data': self}

    def metrics(self) -> dict[str, Any]:
        """Returns `num_rounds`."""
        return {'num_rounds': self.num_rounds}

    def close(self) -> None:
        """Ends the round."""
        self.steps_left = 0

    def _order_of(self, number: int) -> np.ndarray:
        """Returns the elements of the round's batches, int32 [n, size];
        those from `number` on fill up minibatches.
        """
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
            return self._prepared([_with_boundary(sequence) for sequence in sequences])
        if self._single:
            steps = [_select(sequence, sequence.next_step_type != ts.StepType.FIRST) for sequence in sequences]
            return tf.nest.map_structure(lambda column: column[:, np.newaxis], _concatenated(steps))
        lengths = {len(sequence.step_type) for sequence in sequences}
        if len(lengths) > 1 or self._length not in (None, *lengths):
            raise UserValueError(
                f'got sequences of {min(lengths)} to {max(lengths)} rows for a {self._kind} without an Iteration; need '
                f'{self._length or "equally many"} in each, since they are trained on as they are; cut or pad them'
            )
        return tf.nest.map_structure(lambda *columns: np.stack(columns), *sequences)

    def _prepared(self, sequences: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """Returns the prepared steps of sequences [T + 1, ...], and their weights, all above 0."""
        parts = []
        for batch in [_padded(sequences, self._replicas)] if self._pads else _of_equal_length(sequences):
            prepared = self._prepare(tf.nest.map_structure(tf.constant, batch))
            prepared = tf.nest.map_structure(lambda column: column.numpy(), prepared)
            weights = prepared[1]
            parts.append(_select(prepared, weights.reshape(len(weights), -1)[:, 0] > 0))
        return _concatenated(parts)


def _iteration(experience: Experience) -> Iteration | None:
    """Returns how the steps of a round become minibatches;
    None if sequences are trained on as they are.
    """
    replay = experience.replay
    if replay.learns_from_old_items or replay.reuse:
        raise UserValueError(
            f'got Experience.replay={replay!r} for rounds; need a Queue, with training=Iteration(...) or None'
        )
    return replay.iteration


def _check_replicas(strategy: tf.distribute.Strategy, preprocesses: bool, kind: str) -> None:
    layout = strategies.layout(strategy)
    if layout.workers > 1 or (preprocesses and layout.replicas > 1):
        raise UserValueError(
            f'got {layout.replicas} replicas on {layout.workers} workers for rounds of a {kind}; need one worker, and '
            'one replica for an agent that prepares sequences by preprocess_sequence'
        )


def _with_boundary(sequence: Any) -> Any:
    """Returns a sequence that has a row after the last step of its episode,
    as collectors write it.
    """
    if sequence.next_step_type[-1] != LAST:
        return sequence
    return _concatenated([sequence, boundary_row(sequence)])


def _padded(sequences: Sequence[Any], multiple: int) -> Any:
    """Returns sequences [T, ...] as one batch [B', T', ...], filled up with boundary rows.

    B' and T' are powers of two (times `multiple`), so that few programs are compiled.
    """
    length = _power_of_two(max(len(sequence.step_type) for sequence in sequences))
    number = multiple * _power_of_two(-(-len(sequences) // multiple))

    def fill(sequence: Any) -> Any:
        missing = length - len(sequence.step_type)
        if not missing:
            return sequence
        boundary = boundary_row(sequence)
        if sequence.next_step_type[-1] != FIRST:  # it is not ended: only the last observation counts
            last = boundary._replace(step_type=sequence.step_type[-1:])
            sequence = _concatenated([_select(sequence, slice(-1)), last])
        return _concatenated([sequence, *[boundary] * missing])

    filled = [fill(sequence) for sequence in sequences]
    if number > len(filled):
        nothing = _concatenated([boundary_row(sequences[0])] * length)
        filled += [nothing] * (number - len(filled))
    return tf.nest.map_structure(lambda *columns: np.stack(columns), *filled)


def _of_equal_length(sequences: Sequence[Any]) -> list[Any]:
    """Returns sequences [T, ...] as batches [B, T, ...], one for each length."""
    by_length: dict[int, list[Any]] = {}
    for sequence in sequences:
        by_length.setdefault(len(sequence.step_type), []).append(sequence)
    return [tf.nest.map_structure(lambda *columns: np.stack(columns), *group) for group in by_length.values()]


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _select(nest: Any, rows: Any) -> Any:
    """Returns the same rows of each array, by an index or a mask."""
    return tf.nest.map_structure(lambda column: column[rows], nest)


def _concatenated(nests: Sequence[Any]) -> Any:
    """Returns the rows of several nests, one after the other."""
    return tf.nest.map_structure(lambda *columns: np.concatenate(columns), *nests)
