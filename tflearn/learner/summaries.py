"""Summaries: when they are due; the learner's metrics and texts, and histograms of a train step,
for TensorBoard.
"""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import tensorflow as tf
from absl import logging
from tf_agents.distributions import utils as distributions
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.core import histograms, side_tasks
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.types import Agent
from tflearn.core.workers import named_variables
from tflearn.learner.elements import flatten_with_names

_LEAST_FREE_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class SummarySources:
    """What summaries contain that the learner does not know.

    Attributes:
      policy_version: returns the newest version, for a histogram of how many versions the batch is
        behind.
      metrics: returns more metrics by name, for every summary; None is left out.
      texts: returns texts by tag, in markdown; they are written before the first train step.
      watch: called with the train step and the metrics of each summary, by name.
    """

    policy_version: Callable[[], int] | None = None
    metrics: Callable[[], Mapping[str, float | None]] | None = None
    texts: Callable[[], Mapping[str, str]] | None = None
    watch: Callable[[int, Mapping[str, float | None]], None] | None = None


@checked_dataclass(frozen=True)
class SummaryOptions:
    """When summaries are written, and what they contain in addition to the learner's own metrics.

    `interval_steps` and `interval_secs` may be combined; with none of them there are no summaries.
    At the end of training the metrics are written once more. On several workers there are only the
    learner's own metrics.

    Attributes:
      interval_steps: each multiple of it is a train step that is summarized.
      interval_secs: seconds after which the next train step is summarized; not for several workers,
        whose clocks differ.
      first_interval: also summarize every step before the first regular summary.
      flush_secs: longest time until a summary is in the file, as long as more are written.
      max_queue: summaries that may wait to be written to the file.
      actions: write histograms of the batch's actions, and of those that the agent's policy takes
        there now; 'distributions' also writes the parameters of that policy's distribution there
        (logits, means, deviations).
      sources: what else they contain.
      profile_steps: (first, last) train step of a trace for TensorBoard's profiler; None: no trace.
    """

    interval_steps: PositiveInt | None = 1_000
    interval_secs: PositiveFloat | None = None
    first_interval: bool = False
    flush_secs: PositiveFloat = 10.0
    max_queue: PositiveInt = 100
    actions: bool | Literal['distributions'] = True
    sources: SummarySources = SummarySources()
    profile_steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.first_interval and not self.interval_steps:
            raise UserValueError('got first_interval=True without an interval; need interval_steps')
        if self.profile_steps and not 1 <= self.profile_steps[0] <= self.profile_steps[1]:
            raise UserValueError(f'got profile_steps={self.profile_steps}; need (first, last) with 1 <= first <= last')

    def next_step(self, before: int) -> int | None:
        """Returns the first train step after `before` that is summarized by its number;
        None if there is none.
        """
        if not self.interval_steps:
            return None
        due = (before // self.interval_steps + 1) * self.interval_steps
        return before + 1 if self.first_interval and due == self.interval_steps else due


class Summaries:
    """Writes metrics and texts; the event file is created with the first of them."""

    def __init__(
        self,
        directory: pathlib.Path,
        options: SummaryOptions = SummaryOptions(),
        clock: Callable[[], float] = time.monotonic,
    ):
        """Writes nothing yet."""
        self._directory, self._options, self._clock = str(directory), options, clock
        self._written_at = clock()
        self._writer: tf.summary.SummaryWriter | None = None
        self._opening = threading.Lock()  # programs are traced on another thread
        self._had_room = True

    @property
    def wanted(self) -> bool:
        """Whether any summaries are written."""
        return bool(self._options.interval_steps or self._options.interval_secs)

    def next_step(self, before: int) -> int | None:
        """Returns the next train step after `before` that is summarized, as far as is known now."""
        secs = self._options.interval_secs
        if not self._has_room():
            return None
        if secs is not None and self._clock() - self._written_at >= secs:
            return before + 1
        return self._options.next_step(before)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Writes the summary of a train step, with the metrics of `SummaryOptions.metrics`."""
        self._written_at = self._clock()
        sources, written = self._options.sources, {**values}
        if sources.metrics:
            with side_tasks.guarded('compute metrics for the summaries'):
                written |= sources.metrics()
        self.write_values(step, written)
        if sources.watch:
            with side_tasks.guarded('check the metrics of the summaries'):
                sources.watch(step, written)

    def write_values(self, step: int, values: Mapping[str, float | None], group: str = 'train') -> None:
        """Writes scalars under the tags `<group>/<name>`; None is left out."""
        if not self._has_room():
            return
        with self._side_task(), self._open().as_default(step=step):
            for name, value in values.items():
                if value is not None:
                    tf.summary.scalar(f'{group}/{name}', value)

    def write_text(self, step: int, name: str, markdown: str) -> None:
        """Writes a text under the tag `name`, at once."""
        if not self._has_room():
            return
        with self._side_task(), self._open().as_default(step=step) as writer:
            tf.summary.text(name, markdown)
            writer.flush()

    @contextlib.contextmanager
    def recording(self, train_step: tf.Variable) -> Iterator[None]:
        """Records summaries at the train step in a `with` block,
        where programs are traced or run.
        """
        with contextlib.ExitStack() as recorded:
            recorded.enter_context(self._open().as_default(step=train_step))
            recorded.enter_context(tf.summary.record_if(True))
            yield
            with self._side_task():  # the end flushes
                recorded.close()

    def can_record(self) -> bool:
        """Returns whether there is an event file: without a free file handle none can be opened."""
        with self._side_task():
            self._open()
            return True
        return False

    def _open(self) -> tf.summary.SummaryWriter:
        with self._opening:
            if self._writer is None:
                flush_millis = int(1_000 * self._options.flush_secs)
                self._writer = tf.summary.create_file_writer(self._directory, self._options.max_queue, flush_millis)
            return self._writer

    def close(self) -> None:
        """Flushes and closes the event file."""
        if self._writer:
            with self._side_task():
                self._writer.close()

    def _has_room(self) -> bool:
        """Returns whether the disk has room: an error while a train step writes would end the training."""
        try:
            has_room = shutil.disk_usage(self._directory).free >= _LEAST_FREE_BYTES
        except OSError:  # it is not there yet
            return True
        if self._had_room and not has_room:
            logging.warning('no summaries are written while the disk of %s is full', self._directory)
        self._had_room = has_room
        return has_room

    def _side_task(self) -> contextlib.AbstractContextManager[None]:
        return side_tasks.guarded(f'write summaries to {self._directory}')


class StepSummaries:
    """Histograms of actions, of rewards, of the data's age and of layers' outputs,
    written inside a train step.

    They are of one replica's batch, which is a representative sample.
    """

    def __init__(self, agent: Agent, options: SummaryOptions):
        """Makes the variable for the newest policy version; within the strategy's scope."""
        self._agent, self._options = agent, options
        self._newest = tf.Variable(0, trainable=False, dtype=tf.int64, name='newest_policy_version')

    def prepare(self) -> None:
        """Updates the newest policy version; to be called before each step that is summarized."""
        if newest := self._options.sources.policy_version:
            self._newest.assign(newest())

    def __call__(self, data: Any, info: Any) -> None:
        """Writes the histograms of data [B, T, ...] or [B, ...], in replica context;
        only a Trajectory has actions.
        """
        step = self._agent.train_step_counter
        if isinstance(data, trajectory.Trajectory):
            with tf.name_scope('data/'):
                histograms.write('reward', data.reward, step)
            if self._options.actions:
                self._write_actions(data, step)
        if self._options.sources.policy_version and 'policy_version' in info:
            with tf.name_scope('data/'):
                lag = self._newest.read_value() - tf.cast(info['policy_version'], tf.int64)
                histograms.write('policy_lag', lag, step)
        write_layers(self._agent, step)

    def _write_actions(self, data: trajectory.Trajectory, step: tf.Variable) -> None:
        is_sequence = data.step_type.shape.rank > 1
        first = tf.nest.map_structure(lambda column: column[:, 0], data) if is_sequence else data
        time_step = ts.TimeStep(first.step_type, first.reward, first.discount, first.observation)
        policy = self._agent.policy
        state = policy.get_initial_state(tf.shape(first.step_type)[0])
        actions = {'batch': data.action, 'policy': policy.action(time_step, state).action}
        with tf.name_scope('actions/'):
            for name, action in flatten_with_names(actions):
                histograms.write(name, action, step)
        if self._options.actions == 'distributions':
            self._write_distributions(time_step, step)

    def _write_distributions(self, time_step: ts.TimeStep, step: tf.Variable) -> None:
        policy = self._agent.policy
        # A greedy one has no other parameter than its action.
        while hasattr(policy, 'wrapped_policy'):
            policy = policy.wrapped_policy
        state = policy.get_initial_state(tf.shape(time_step.step_type)[0])
        found = tf.nest.map_structure(
            lambda each: distributions.parameters_to_dict(distributions.get_parameters(each), tensors_only=True),
            policy.distribution(time_step, state).action,
        )
        with tf.name_scope('distributions/'):
            for name, parameter in flatten_with_names(found):
                if isinstance(parameter, tf.Tensor) and parameter.dtype.is_floating and parameter.shape.rank:
                    histograms.write(name, parameter, step)


class Profile:
    """Traces the train steps first..last once.
    A run that is resumed between them traces the rest.
    """

    def __init__(self, directory: pathlib.Path, steps: tuple[int, int] | None):
        """Traces nothing yet.

        Args:
          directory: the directory of the event files; the trace is written to its
            `plugins/profile`.
          steps: first and last train step, both in the trace; None never traces.
        """
        self._directory, self._steps = str(directory), steps
        self._running = False

    def boundary(self, before: int) -> int | None:
        """Returns the next train step at which the trace begins or ends;
        no program may run across it.
        """
        if not self._steps:
            return None
        first, last = self._steps
        return next((step for step in (first - 1, last) if step > before), None)

    def at(self, step: int) -> None:
        """Begins or ends the trace, if that is due when `step` train steps are done."""
        if not self._steps:
            return
        first, last = self._steps
        if self._running and step >= last:
            self.stop()
        elif not self._running and first <= step + 1 <= last:
            self._start()

    def stop(self) -> None:
        """Ends the trace if it runs, and writes it."""
        if self._running:
            self._running = False
            with side_tasks.guarded(f'write the trace of train steps {self._steps}'):
                tf.profiler.experimental.stop()
                logging.info('wrote the trace of train steps %s to %s', self._steps, self._directory)

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(self._directory)
        except tf.errors.OpError as error:  # training continues without a trace
            logging.warning('could not trace train steps %s: %s', self._steps, error)
            self._steps = None
            return
        self._running = True


_BETWEEN = ('Cast', 'Identity', 'ReadVariableOp', 'Unpack')  # the variable and the addition
_ACTIVATIONS = ('Elu', 'LeakyRelu', 'Relu', 'Relu6', 'Selu', 'Sigmoid', 'Softplus', 'Tanh')
_CAN_DIE = ('Relu', 'Relu6')
_BIAS = re.compile(r'/_?bias(es)?(/\d+)?$')


def write_layers(agent: Any, step: tf.Tensor) -> None:
    """Writes `layers/<path>` of each layer that the present graph has computed,
    `<path>/dead_units` of ReLUs.

    A layer is found by the addition of its bias, a variable of the agent, whether it is a Keras
    layer or not. Its output is that of the activation that follows, if there is one alone. Nothing
    is computed again: it is what the train step has computed for its batch. Branches and loops are
    graphs of their own, whose layers are not found.

    Args:
      agent: the agent, whose variables' paths are the layers' names. Targets are left out.
      step: int64 scalar, the train step.
    """
    graph = tf.compat.v1.get_default_graph()
    names = {id(handle): _BIAS.sub('', path) for path, handle in _handles(agent) if 'target' not in path}
    captured = {inner.name: names[id(outer)] for outer, inner in graph.captures if id(outer) in names}
    written: set[str] = set()
    with tf.name_scope('layers/'):
        for operation in graph.get_operations():
            name = _layer(operation, captured) if operation.type in ('BiasAdd', 'AddV2') else None
            if name is None or name in written:  # another time on other inputs
                continue
            written.add(name)
            activations = [each for each in operation.outputs[0].consumers() if each.type in _ACTIVATIONS]
            if len(activations) == 1:
                (operation,) = activations
            (output,) = operation.outputs
            histograms.write(name, output, step)
            if operation.type in _CAN_DIE:
                units = tf.reshape(output, [-1, output.shape[-1]])
                dead = tf.reduce_mean(tf.cast(tf.reduce_all(units <= 0, axis=0), tf.float32))
                tf.summary.scalar(f'{name}/dead_units', dead, step=step)


def _layer(addition: tf.Operation, captured: dict[str, str]) -> str | None:
    """Returns the name of the layer that adds its bias;
    of several layers in one variable with the index.
    """
    bias, index = addition.inputs[1], 0
    while bias.op.type in _BETWEEN:
        index = max(index, bias.value_index)
        bias = bias.op.inputs[0]
    name = captured.get(bias.name)
    return f'{name}/{index}' if name and index else name


def _handles(agent: Any) -> Iterator[tuple[str, tf.Tensor]]:
    """Yields the biases of the agent's layers in this replica: the shortest path of the attributes,
    and the handle.
    """
    for path, variable in named_variables(agent).items():
        if _BIAS.search(path):
            name = '/'.join(part.lstrip('_') for part in path.split('/'))
            yield name, tf.distribute.get_strategy().experimental_local_results(variable)[0].handle
