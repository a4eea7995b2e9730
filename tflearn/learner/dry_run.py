"""Dry run: the train step of one replica of a cluster that is not here, compiled by XLA on this machine's CPU.

It shows shapes, the bytes that a step sends over each kind of link, and what a TPU would refuse. Bytes are calculated
from the shapes: nothing is sent. XLA for a CPU accepts some operations that XLA for a TPU does not.

What a TPU refuses is data without fixed shapes or of types that it does not have, and operations of the host.
"""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserValueError, first_few
from tflearn.learner import tpu_data
from tflearn.sampling import dataset_source

_NOT_COMPILED = re.compile(r"(\w+) \(No registered '\w+' OpKernel")


@dataclasses.dataclass(frozen=True)
class ClusterShape:
    """Hosts with the same number of replicas each.

    Attributes:
      hosts: machines, each with an input pipeline.
      replicas_per_host: devices of a machine that train.
    """

    hosts: int
    replicas_per_host: int

    @classmethod
    def parse(cls, text: str) -> 'ClusterShape':
        """Returns the cluster shape 'HOSTSxREPLICAS', such as '2x4'; raises ValueError for other texts."""
        match = re.fullmatch(r'([1-9]\d{0,5})x([1-9]\d{0,5})', text)
        if not match:
            raise UserValueError(
                f'got the cluster shape {text!r}; need HOSTSxREPLICAS, such as 2x4 for 2 hosts with 4 replicas each'
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def replicas(self) -> int:
        """The replicas of all hosts."""
        return self.hosts * self.replicas_per_host

    def input_contexts(self) -> list[tf.distribute.InputContext]:
        """Returns the context that a dataset function gets on each host."""
        return [tf.distribute.InputContext(self.hosts, i, self.replicas) for i in range(self.hosts)]

    def __str__(self) -> str:
        return f'{self.hosts}x{self.replicas_per_host}'


@dataclasses.dataclass(frozen=True)
class DryRunReport:
    """What a dry run found.

    Attributes:
      shape: the hosts and replicas.
      batch: nest of tensor specs [B, ...]: the batch of one replica.
      gradient_bytes: of all variables that are trained [bytes].
      reads_on_one_host: whether one process makes the batches of all hosts.
      compile_secs: how long tracing and XLA took; None if the step was not compiled.
      refusals: what a TPU would refuse: got X; need Y; do Z.
    """

    shape: ClusterShape
    batch: Any
    gradient_bytes: int
    reads_on_one_host: bool = False
    compile_secs: float | None = None
    refusals: Sequence[str] = ()

    @property
    def batch_bytes(self) -> int:
        """The batch of one replica; 0 if its size is not known [bytes]."""
        leaves = tf.nest.flatten(self.batch, expand_composites=True)
        return sum((leaf.shape.num_elements() or 0) * leaf.dtype.size for leaf in leaves)

    def bytes_per_step(self) -> dict[str, int]:
        """Returns the bytes of a train step by link; those that leave, which are as many as arrive.

        Gradients are summed by a ring over all n replicas (Patarasuk and Yuan 2009): each sends 2 (n - 1) / n of them
        to the next one, and on each host one replica has its next one on another host. Metrics are left out.
        """
        n, here = self.shape.replicas, self.shape.replicas_per_host
        ring = math.ceil(2 * (n - 1) / n * self.gradient_bytes)
        return {
            'host to each of its devices': self.batch_bytes,
            'host to all of its devices': self.batch_bytes * here,
            'device to device, gradients': ring,
            'host to host, gradients': ring if self.shape.hosts > 1 else 0,
            'host to host, batches': self.batch_bytes * (n - here) if self.reads_on_one_host else 0,
        }

    def text(self) -> str:
        """Returns the report, for people."""
        lines = [f'cluster shape {self.shape}: {self.shape.replicas} replica(s) on {self.shape.hosts} host(s)']
        lines.append('batch of one replica:')
        for name, leaf in nest_utils.flatten_with_joined_paths(self.batch, expand_composites=True):
            lines.append(f'  {name}: {leaf.dtype.name} {leaf.shape}')
        lines.append('bytes of a train step (calculated):')
        lines += [f'  {link}: {count:,}' for link, count in self.bytes_per_step().items()]
        if self.compile_secs is None:
            lines.append('the train step of one replica was not compiled')
        else:
            lines.append(f'XLA compiled the train step of one replica for a CPU in {self.compile_secs:.1f} s')
        return '\n'.join([*lines, *(f'a TPU would refuse: {line}' for line in self.refusals)])

    def check(self) -> None:
        """Raises a ValueError if there are refusals: the first one, and how many more there are."""
        if self.refusals:
            raise UserValueError(first_few(self.refusals, 1))


def of_step(
    step: Callable[[Any], Any], batch: Any, gradient_bytes: int, shape: ClusterShape, reads_on_one_host: bool = False
) -> DryRunReport:
    """Traces the train step of one replica, and lets XLA compile it. No step is taken.

    Args:
      step: takes the batch of one replica.
      batch: nest of tensor specs, the batch of one replica.
      gradient_bytes: see `DryRunReport`.
      shape: where it would run.
      reads_on_one_host: see `DryRunReport`.
    """
    refusals, secs = tpu_data.refused_data(batch), None
    if not refusals:
        start = time.perf_counter()
        with tf.summary.record_if(False):
            # This makes the optimizer's slots, too.
            refusals += refused_operations(tf.function(step, autograph=False).get_concrete_function(batch).graph)
            unknown = _compile(step, batch)
        if unknown is None:
            secs = time.perf_counter() - start
        elif not refusals:
            refusals.append(unknown)
    return DryRunReport(shape, batch, gradient_bytes, reads_on_one_host, secs, tuple(refusals))


def of_dataset_fn(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset], shape: ClusterShape
) -> tuple[Any, list[str]]:
    """Calls a dataset function as each host of a shape would.

    Args:
      dataset_fn: returns a dataset of batches for one replica, see `Learner`.

    Returns:
      The spec of the first host's elements (None if there is none), and what a TPU would refuse of any host.
    """
    specs, lines = [], []
    for context in shape.input_contexts():
        try:
            dataset = dataset_source.call(dataset_fn, context)
        except ValueError as error:  # of `get_per_replica_batch_size`, for example
            lines.append(
                f'got no dataset for {shape.replicas} replicas: {" ".join(str(error).split())}; need a global batch '
                f'that {shape.replicas} divides; change it, or use other replicas'
            )
            continue
        if dataset.cardinality() != tf.data.INFINITE_CARDINALITY:
            lines.append('got a dataset that may end; need an endless one for a TPU; end it with .repeat()')
        lines += tpu_data.refused_data(dataset.element_spec)
        specs.append(dataset.element_spec)
        if specs[-1] != specs[0]:
            lines.append(
                f'got other elements on host {context.input_pipeline_id} than on host 0 ({specs[-1]}; {specs[0]}); '
                'need the same shapes on all hosts; give each the same batch'
            )
    return specs[0] if specs else None, list(dict.fromkeys(lines))


def gradient_bytes(agent: Any) -> int:
    """Returns the bytes of the gradients of an agent's variables: those to train, without target networks.

    Target networks are parts of the agent, or of its parts, in whose name there is 'target'.
    """
    view = tf.train.TrackableView(agent)
    children = [child for part in view.descendants() for child in view.children(part).items()]
    targets = {each.ref() for name, child in children if 'target' in name for each in _variables(child)}
    trained = {each.ref(): each for each in _variables(agent) if each.trainable and each.dtype.is_floating}
    return sum(each.shape.num_elements() * each.dtype.size for ref, each in trained.items() if ref not in targets)


def _variables(part: Any) -> list[tf.Variable]:
    return [each for each in tf.train.TrackableView(part).descendants() if isinstance(each, tf.Variable)]


def _compile(step: Callable[[Any], Any], batch: Any) -> str | None:
    """Compiles a step with XLA. Returns why it cannot, in one line; None if it can."""
    # Not `step` itself, which may have other arguments with defaults.
    function: Any = tf.function(lambda element: step(element), autograph=False, jit_compile=True)
    zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), batch)
    try:
        function.experimental_get_compiler_ir(zeros)(stage='optimized_hlo')
    except (ValueError, tf.errors.OpError) as error:
        kinds = sorted(set(_NOT_COMPILED.findall(str(error))))
        reason = ', '.join(kinds) or str(error).strip().splitlines()[0]
        return (
            f'got a train step that XLA cannot compile ({reason}); need operations that XLA has; move them to the '
            'data, or compute it in another way'
        )
    return None


# Operations that run Python, write files or print: a program on a TPU cannot call back to its host for them.
_HOST_OPS = ('PyFunc', 'PyFuncStateless', 'EagerPyFunc', 'Print', 'PrintV2', 'WriteFile', 'ReadFile')
_HOST_PREFIXES = ('Write', 'Reverb')  # WriteSummary, WriteScalarSummary, ...; the replay's client
_MAX_NAMED = 3


def refused_operations(graph: tf.Graph) -> list[str]:
    """Returns what a TPU refuses in a traced step, one line for each kind of operation."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind, name, is_float64 in _operations(graph):
        if kind in _HOST_OPS or kind.startswith(_HOST_PREFIXES):
            found.setdefault(('host', kind), []).append(name)
        if is_float64:
            found.setdefault(('float64', ''), []).append(name)
    return [_line(reason, kind, names) for (reason, kind), names in found.items()]


def _operations(graph: tf.Graph) -> Iterator[tuple[str, str, bool]]:
    """Returns kind and name of the operations of a graph and of all its functions, and whether they make float64."""
    definition = graph.as_graph_def(add_shapes=False)
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            types = {attribute.type for attribute in node.attr.values()}
            types |= {each for attribute in node.attr.values() for each in attribute.list.type}
            yield node.op, node.name, tf.float64.as_datatype_enum in types


def _line(reason: str, kind: str, names: list[str]) -> str:
    named = ', '.join(names[:_MAX_NAMED]) + (f' and {len(names) - _MAX_NAMED} more' if len(names) > _MAX_NAMED else '')
    if reason == 'float64':
        return f'got float64 in the train step ({named}); need float32 on a TPU; cast what it is computed from'
    return (
        f'got the host operation {kind} in the train step ({named}); need operations that run on a TPU; move it to '
        'the data, or to LearnerOptions.after_run'
    )
