"""Summaries: when they are due; the learner's metrics and texts, and what a train step returns for them,
for TensorBoard.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.distributions import utils as distributions
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.core import side_tasks, summary_tensors
from tflearn.core.errors import UserOSError, UserValueError
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
    At the end of training the metrics are written once more. Of several workers the chief writes.

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
    """Writes metrics, histograms and texts; the event file is created with the first of them."""

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

    @property
    def wanted(self) -> bool:
        """Whether any summaries are written."""
        return bool(self._options.interval_steps or self._options.interval_secs)

    def next_step(self, before: int) -> int | None:
        """Returns the next train step after `before` that is summarized, as far as is known now.

        It is the same on all workers, also if the disk of one is full.
        """
        secs = self._options.interval_secs
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
        self.write_tags(step, {f'{group}/{name}': value for name, value in values.items() if value is not None})

    def write_tags(self, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """Writes scalars and histograms, as `summary_tensors` made them, under their tags."""
        with self._side_task(), self._with_room().as_default(step=step), tf.summary.record_if(True):
            tf.summary.experimental.write_raw_pb(summary_tensors.serialized(values))

    def write_text(self, step: int, name: str, markdown: str) -> None:
        """Writes a text under the tag `name`, at once."""
        with self._side_task(), self._with_room().as_default(step=step) as writer:
            tf.summary.text(name, markdown)
            writer.flush()

    @contextlib.contextmanager
    def recording(self, train_step: tf.Variable) -> Iterator[None]:
        """Records what agents write themselves at the train step in a `with` block,
        where programs are traced or run.
        """
        with contextlib.ExitStack() as recorded:
            recorded.enter_context(self._open().as_default(step=train_step))
            recorded.enter_context(tf.summary.record_if(True))
            yield
            with self._side_task():  # the end flushes
                recorded.close()

    def can_record(self) -> bool:
        """Returns whether a program can write to the event file: an error there would end the training.

        Without a free file handle none can be opened, and on a full disk none can grow.
        """
        with self._side_task():
            return self._with_room() is not None
        return False

    def _with_room(self) -> tf.summary.SummaryWriter:
        """Returns the writer. Raises OSError on a full disk."""
        if os.path.exists(self._directory) and shutil.disk_usage(self._directory).free < _LEAST_FREE_BYTES:
            raise UserOSError(f'got less than {_LEAST_FREE_BYTES} bytes free on its disk; need them; make room')
        return self._open()

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

    def _side_task(self) -> contextlib.AbstractContextManager[None]:
        return side_tasks.guarded(f'write summaries to {self._directory}')


class StepSummaries:
    """Histograms of actions, of rewards, of the data's age and of layers' outputs,
    which a train step returns.

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
        """Adds the histograms of data [B, T, ...] or [B, ...], in replica context;
        only a Trajectory has actions.
        """
        if isinstance(data, trajectory.Trajectory):
            summary_tensors.histogram('data/reward', data.reward)
            if self._options.actions:
                self._add_actions(data)
        if self._options.sources.policy_version and 'policy_version' in info:
            lag = self._newest.read_value() - tf.cast(info['policy_version'], tf.int64)
            summary_tensors.histogram('data/policy_lag', lag)
        add_layers(self._agent)

    def _add_actions(self, data: trajectory.Trajectory) -> None:
        is_sequence = data.step_type.shape.rank > 1
        first = tf.nest.map_structure(lambda column: column[:, 0], data) if is_sequence else data
        time_step = ts.TimeStep(first.step_type, first.reward, first.discount, first.observation)
        policy = self._agent.policy
        state = policy.get_initial_state(tf.shape(first.step_type)[0])
        actions = {'batch': data.action, 'policy': policy.action(time_step, state).action}
        for name, action in flatten_with_names(actions):
            summary_tensors.histogram(f'actions/{name}', action)
        if self._options.actions == 'distributions':
            self._add_distributions(time_step)

    def _add_distributions(self, time_step: ts.TimeStep) -> None:
        policy = self._agent.policy
        # A greedy one has no other parameter than its action.
        while hasattr(policy, 'wrapped_policy'):
            policy = policy.wrapped_policy
        state = policy.get_initial_state(tf.shape(time_step.step_type)[0])
        found = tf.nest.map_structure(
            lambda each: distributions.parameters_to_dict(distributions.get_parameters(each), tensors_only=True),
            policy.distribution(time_step, state).action,
        )
        for name, parameter in flatten_with_names(found):
            if isinstance(parameter, tf.Tensor) and parameter.dtype.is_floating and parameter.shape.rank:
                summary_tensors.histogram(f'distributions/{name}', parameter)


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
        self._directory, self._steps = str(directory), steps or (0, 0)
        self._running = False

    def boundary(self, before: int) -> int | None:
        """Returns the next train step at which the trace begins or ends;
        no program may run across it.
        """
        first, last = self._steps
        return next((step for step in (first - 1, last) if step > before), None)

    def at(self, step: int) -> None:
        """Begins or ends the trace, if that is due when `step` train steps are done."""
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
            self._running = True
        except tf.errors.OpError as error:  # training continues without a trace
            logging.warning('could not trace train steps %s: %s', self._steps, error)
            self._steps = (0, 0)


_BETWEEN = ('Cast', 'Identity', 'ReadVariableOp', 'Unpack')  # the variable and the addition
_ACTIVATIONS = ('Elu', 'LeakyRelu', 'Relu', 'Relu6', 'Selu', 'Sigmoid', 'Softplus', 'Tanh')
_BIAS, _HIDDEN = re.compile(r'/_?bias(es)?(/\d+)?$'), re.compile('(^|/)_+')


def add_layers(agent: Any) -> None:
    """Adds `layers/<path>` of each layer that the present graph has computed,
    `<path>/dead_units` of ReLUs.

    A layer is found by the addition of its bias, a variable of the agent, whether it is a Keras
    layer or not. Its output is that of the activation that follows, if there is one alone. Nothing
    is computed again: it is what the train step has computed for its batch. Branches and loops are
    graphs of their own, whose layers are not found.

    Args:
      agent: the agent, whose variables' paths are the layers' names. Targets are left out.
    """
    graph = tf.compat.v1.get_default_graph()
    biases = {path: v for path, v in named_variables(agent).items() if _BIAS.search(path) and 'target' not in path}
    # The handles are those of this replica.
    names = {id(each.handle): _HIDDEN.sub(r'\1', _BIAS.sub('', path)) for path, each in biases.items()}
    captured = {inner.name: names[id(outer)] for outer, inner in graph.captures if id(outer) in names}
    for operation in graph.get_operations():
        name = _layer(operation, captured) if operation.type in ('BiasAdd', 'AddV2') else None
        if name is None:
            continue
        activations = [each for each in operation.outputs[0].consumers() if each.type in _ACTIVATIONS]
        if len(activations) == 1:
            (operation,) = activations
        (output,) = operation.outputs
        summary_tensors.histogram(f'layers/{name}', output)
        if operation.type.startswith('Relu'):  # units that can die
            units = tf.reshape(output, [-1, output.shape[-1]])
            dead = tf.reduce_mean(tf.cast(tf.reduce_all(units <= 0, axis=0), tf.float32))
            summary_tensors.scalar(f'layers/{name}/dead_units', dead)


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
