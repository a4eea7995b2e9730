"""Dry run: the train step of one replica of a cluster that is not here,
compiled by XLA for this CPU or for a TPU.

It shows shapes, the bytes that a step sends over each kind of link, and what a TPU would refuse.
Bytes are calculated from the shapes: nothing is sent. The learner itself refuses data without fixed
shapes, or of types that a TPU does not have. All else is the compiler's answer; XLA for a CPU
accepts some operations that XLA for a TPU does not.
"""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserImportError, UserValueError, first_few
from tflearn.learner import tpu_compiler, tpu_data
from tflearn.sampling import dataset_source

# How XLA names an operation that it does not have, and where it is.
_NOT_COMPILED = re.compile(
    r"(\w+) \(No registered '\w+' OpKernel for \w+ devices compatible with node (?:\{\{function_node [^}]*\}\})?"
    r'\{\{node ([^}]*)\}\}'
)
_CREATED_AT = re.compile(r'The op is created at:\s*(?:File .*\n)*File "(.*)", line (\d+), in (.*)')
_NO_COMPILER = 'could not find registered transfer manager for platform Host'


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
        """Returns the cluster shape 'HOSTSxREPLICAS', such as '2x4';
        raises ValueError for other texts.
        """
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
      compile_secs: how long tracing and XLA in this process took; None if the step was not
        compiled.
      compiled: what the compiler for a TPU reports; None without one.
      refusals: what a TPU would refuse: got X; need Y; do Z.
    """

    shape: ClusterShape
    batch: Any
    gradient_bytes: int
    reads_on_one_host: bool = False
    compile_secs: float | None = None
    compiled: tpu_compiler.Compiled | None = None
    refusals: Sequence[str] = ()

    @property
    def batch_bytes(self) -> int:
        """The batch of one replica; 0 if its size is not known [bytes]."""
        leaves = tf.nest.flatten(self.batch, expand_composites=True)
        return sum((leaf.shape.num_elements() or 0) * leaf.dtype.size for leaf in leaves)

    def bytes_per_step(self) -> dict[str, int]:
        """Returns the bytes of a train step by link; those that leave, which are as many as arrive.

        Gradients are summed by a ring over all n replicas (Patarasuk and Yuan 2009): each sends 2
        (n - 1) / n of them to the next one, and on each host one replica has its next one on
        another host. Metrics are left out.
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
        sizes = {leaf.shape[0] for leaf in tf.nest.flatten(self.batch, expand_composites=True) if leaf.shape.rank}
        known = (
            f'; {sizes.pop() * self.shape.replicas} in the global batch'
            if len(sizes) == 1 and None not in sizes
            else ''
        )
        lines.append(f'batch of one replica{known}:')
        for name, leaf in nest_utils.flatten_with_joined_paths(self.batch, expand_composites=True):
            lines.append(f'  {name}: {leaf.dtype.name} {leaf.shape}')
        lines.append('bytes of a train step (calculated):')
        lines += [f'  {link}: {count:,}' for link, count in self.bytes_per_step().items()]
        if self.compiled is not None:
            lines.append(f'XLA lowered the train step of one replica in {self.compile_secs:.1f} s')
            lines.append(self.compiled.text())
        elif self.compile_secs is None or self.refusals:
            lines.append('the train step of one replica was not compiled')
        else:
            lines.append(f'XLA compiled the train step of one replica for a CPU in {self.compile_secs:.1f} s')
        return '\n'.join([*lines, *(f'a TPU would refuse: {line}' for line in self.refusals)])

    def check(self) -> None:
        """Raises a ValueError if there are refusals: the first one, and how many more there are."""
        if self.refusals:
            raise UserValueError(first_few(self.refusals, 1))


def of_step(
    step: Callable[[Any], Any],
    batch: Any,
    gradient_bytes: int,
    shape: ClusterShape,
    reads_on_one_host: bool = False,
    tpu: str | None = None,
) -> DryRunReport:
    """Traces the train step of one replica, and lets XLA compile it. No step is taken.

    Args:
      step: takes the batch of one replica.
      batch: nest of tensor specs, the batch of one replica.
      gradient_bytes: see `DryRunReport`.
      shape: where it would run.
      reads_on_one_host: see `DryRunReport`.
      tpu: the kind of TPU to compile for, of `tpu_compiler.KINDS`, by an agent of
        `tpu_compiler.strategy`; None compiles for this CPU.

    Raises:
      ValueError: if there is no TPU of this shape.
    """
    if tpu:
        tpu_compiler.check_slice(tpu, shape.hosts, shape.replicas_per_host)
    refusals, secs, compiled = tpu_data.refused_data(batch), None, None
    if not refusals:
        start = time.perf_counter()
        try:
            with tf.summary.record_if(False):
                # This makes the optimizer's slots, too.
                tf.function(step, autograph=False).get_concrete_function(batch)
                lowered = _lower(step, batch, 'hlo_serialized' if tpu else 'optimized_hlo')
            secs = time.perf_counter() - start
            compiled = tpu_compiler.compile_hlo(lowered, tpu, shape.replicas) if tpu else None
        except UserValueError as error:
            refusals.append(str(error))
    return DryRunReport(shape, batch, gradient_bytes, reads_on_one_host, secs, compiled, tuple(refusals))


def of_dataset_fn(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset], shape: ClusterShape
) -> tuple[Any, list[str]]:
    """Calls a dataset function as each host of a shape would.

    Args:
      dataset_fn: returns a dataset of batches for one replica, see `Learner`.

    Returns:
      The spec of the first host's elements (None if there is none), and what a TPU would refuse of
      any host.
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
    """Returns the bytes of the gradients of an agent's variables:
    those to train, without target networks.

    Target networks are parts of the agent, or of its parts, in whose name there is 'target'.
    """
    view = tf.train.TrackableView(agent)
    children = [child for part in view.descendants() for child in view.children(part).items()]
    targets = {each.ref() for name, child in children if 'target' in name for each in _variables(child)}
    trained = {each.ref(): each for each in _variables(agent) if each.trainable and each.dtype.is_floating}
    return sum(each.shape.num_elements() * each.dtype.size for ref, each in trained.items() if ref not in targets)


def _variables(part: Any) -> list[tf.Variable]:
    return [each for each in tf.train.TrackableView(part).descendants() if isinstance(each, tf.Variable)]


def _lower(step: Callable[[Any], Any], batch: Any, stage: str) -> Any:
    """Returns a train step as XLA has it after a stage of its compiler.

    Raises:
      ValueError: if XLA cannot compile it; it names the first operation that only a host has, or
        the reason.
      ImportError: if this TensorFlow compiles nothing for a CPU.
    """
    # Not `step` itself, which may have other arguments with defaults.
    function: Any = tf.function(lambda element: step(element), autograph=False, jit_compile=True)
    zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), batch)
    try:
        return function.experimental_get_compiler_ir(zeros)(stage=stage)
    except (ValueError, tf.errors.OpError) as error:
        if found := _NOT_COMPILED.search(str(error)):
            created = _CREATED_AT.search(str(error), found.end())
            where = f'{found[2]}, made by {created[3]} in {created[1]}:{created[2]}' if created else found[2]
            raise UserValueError(
                f'got the host operation {found[1]} in the train step ({where}); need operations that run on a TPU; '
                'move it to the data, or to LearnerOptions.after_run'
            ) from error
        reason = str(error).strip().splitlines()[0]
        if _NO_COMPILER in reason:
            raise UserImportError(
                f'got TensorFlow for TPUs, whose XLA compiles nothing for a CPU ({reason}); need stock TensorFlow for '
                'a dry run; use the current lane (Python 3.13)'
            ) from error
        raise UserValueError(
            f'got a train step that XLA cannot compile ({reason}); need operations that '
            'XLA has; compute it in another way'
        ) from error
