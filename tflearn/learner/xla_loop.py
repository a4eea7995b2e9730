"""XlaLoop: train steps in XLA, many in one program; and the rule by which it is chosen."""

import math
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.learner.batches import SourceBatches, TakeStep

Program = Callable[[int], Any]  # train steps -> their metrics
Compile = Callable[[Callable[..., Any]], Program]

MIN_XLA_STEPS = 4  # for fewer, what a call costs is more than what XLA gains
# Train steps before 'auto' compiles: a run that is shorter would not win the time back.
AUTO_AFTER_STEPS = 10_000
_MAX_MULTIPLICATIONS = 8e6  # in the matrix products of a train step, for 'auto'
_PRODUCTS = ('MatMul', 'BatchMatMul', 'BatchMatMulV2')


class XlaLoop(tf.train.experimental.PythonState):
    """The plain program, and after a number of train steps the one in XLA, on the same batches.

    The train step of a small network is mostly the overhead of a few hundred operations, which XLA
    removes if it compiles the loop around them, not only the step. What XLA cannot do (reading
    memory that other threads write, and queues) stays outside: a program of TensorFlow draws,
    gathers the batches of some train steps, and calls XLA's.

    Its state in a checkpoint is the number of train steps that are still without XLA, which rounds
    other numbers.

    Attributes:
      has_compiled: whether XLA has compiled it.
    """

    def __init__(
        self,
        plain: Program,
        batches: SourceBatches,
        take: TakeStep,
        num_sums: int,
        compile_loop: Compile,
        after_steps: int,
    ):
        """Compiles nothing yet.

        Args:
          plain: the program without XLA.
          batches: the batches, of which XLA's program has `num_together` in memory.
          take: see `SourceBatches.loop`.
          num_sums: the length of the vector of sums.
          compile_loop: compiles a loop (sums, number of steps) to a program.
          after_steps: train steps without XLA before it compiles; those of short calls do not
            count.
        """
        self._plain, self._batches, self._take, self._num_sums = plain, batches, take, num_sums
        self._compile_loop, self._steps_left, self._size = compile_loop, after_steps, batches.num_together
        self._many: Program | None = None
        self._tried = self.has_compiled = False

    def serialize(self) -> str:
        """Returns the number of train steps before XLA."""
        return str(self._steps_left)

    def deserialize(self, string_value: str) -> None:
        """Restores it."""
        self._steps_left = int(string_value)

    def prepare(self) -> None:
        """Compiles if it is time, unless it was tried before, by a call without any train step."""
        if self._tried or self._steps_left > 0:
            return
        self._tried = True
        with self._batches.strategy.scope():
            self._compile()

    def _compile(self) -> None:
        start = time.perf_counter()
        self._trace()
        # Not a direct call of the function: what XLA compiles for that is not used by other
        # programs.
        specs = [*self._stack_spec, tf.TensorSpec((self._num_sums,))]
        zeros = lambda: [tf.zeros(spec.shape, spec.dtype) for spec in specs]  # noqa: E731
        call = tf.function(lambda: self._steps(*zeros(), tf.constant(0, tf.int64)), autograph=False)
        try:
            call.get_concrete_function()()
        except tf.errors.OpError as error:
            logging.warning('trains without XLA, which cannot compile the train step: %s', error)
            return
        secs = time.perf_counter() - start
        logging.info('XLA takes up to %d train steps at a time; compiled in %.1f s', self._size, secs)
        self._many, self.has_compiled = self._compile_loop(self._loop), True

    def __call__(self, num_steps: int) -> Any:
        """Takes train steps."""
        if num_steps < MIN_XLA_STEPS:
            return self._plain(num_steps)
        self.prepare()
        self._steps_left -= num_steps
        return (self._many or self._plain)(num_steps)

    def _trace(self) -> None:
        specs = tf.nest.flatten(self._batches.element_spec)
        self._stack_spec = [tf.TensorSpec((self._size, *spec.shape), spec.dtype) for spec in specs]
        # The items' errors [size, B], if they are wanted.
        self._error_specs = [tf.TensorSpec((self._size, specs[0].shape[0]))] if self._batches.prioritization else []
        stack = tf.nest.pack_sequence_as(self._batches.element_spec, self._stack_spec)
        self._steps = tf.function(self._many_steps, autograph=False, jit_compile=True).get_concrete_function(
            stack, tf.TensorSpec((self._num_sums,), tf.float32), tf.TensorSpec((), tf.int64)
        )

    def _loop(self, sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        return self._batches.over_draws(self._steps_of_draw, sums, num_steps)

    def _steps_of_draw(self, drawn: Any, count: tf.Tensor, before: tf.Tensor, sums: tf.Tensor, arrays: Any) -> Any:
        """Takes `count` train steps on a draw; see `SourceBatches.over_draws`."""

        def some(i: tf.Tensor, sums: tf.Tensor, going_on: tf.Tensor, arrays: Any) -> Any:
            del going_on
            taken, sums, going_on, *errors = self._steps(*self._stack(drawn, i, count), sums, count - i)
            rows = tf.cast(tf.range(before + i, before + i + taken), tf.int32)
            pairs = zip(arrays, errors, strict=True)
            return i + taken, sums, going_on, tuple(array.scatter(rows, part[:taken]) for array, part in pairs)

        return tf.while_loop(
            lambda i, _, going_on, arrays: tf.logical_and(going_on, i < count),
            some,
            (tf.constant(0, tf.int64), sums, tf.constant(True), arrays),
        )

    def _stack(self, drawn: Any, i: tf.Tensor, count: tf.Tensor) -> list[tf.Tensor]:
        """Returns batches i, i + 1, ... of a draw, always `size` of them:
        the last one again at the end.
        """
        indices = tf.minimum(i + tf.range(self._size, dtype=tf.int64), count - 1)
        columns = tf.nest.flatten(self._batches.gather(drawn, indices))
        return [tf.ensure_shape(column, spec.shape) for column, spec in zip(columns, self._stack_spec, strict=True)]

    def _many_steps(self, stack: Any, sums: tf.Tensor, count: tf.Tensor) -> Any:
        """Takes train steps on the first `count` batches, or all. For XLA."""
        count = tf.minimum(count, self._size)

        def one(i: tf.Tensor, sums: tf.Tensor, going_on: tf.Tensor, *errors: tf.Tensor) -> Any:
            del going_on
            element = tf.nest.map_structure(lambda column: tf.gather(column, i), stack)
            sums, going_on, new = self._take(sums, element)
            here = tf.range(self._size, dtype=tf.int64)[:, None] == i
            return i + 1, sums, going_on, *(tf.where(here, *pair) for pair in zip(new, errors, strict=True))

        errors = (tf.zeros(spec.shape, spec.dtype) for spec in self._error_specs)
        return tf.while_loop(
            lambda i, _, going_on, *errors: tf.logical_and(going_on, i < count),
            one,
            (tf.constant(0, tf.int64), sums, tf.constant(True), *errors),
            maximum_iterations=self._size,
        )


def why_slower_in_xla(graph: tf.Graph) -> str | None:
    """Returns why XLA is not expected to take the train steps of a graph faster, on a CPU;
    None if it is.

    XLA removes the overhead of operations, but its own matrix products and convolutions are slower
    than TensorFlow's (`benchmarks/train_loops.py`). So it is for train steps with small matrix
    products alone. Random numbers with a seed would be others in XLA.
    """
    if tf.config.list_logical_devices('GPU') or tf.config.list_logical_devices('TPU'):
        return "'auto' is a rule for CPUs"
    nested = [node.op for function in graph.as_graph_def().library.function for node in function.node_def]
    operations = graph.get_operations()
    for kind in (*nested, *(operation.type for operation in operations)):
        if kind.startswith(('Conv', 'DepthwiseConv')):
            return f'the train step has convolutions ({kind})'
        if kind.startswith('Random'):
            return f'the train step draws random numbers ({kind}), and XLA would draw others'
    if not set(_PRODUCTS).isdisjoint(nested):
        return 'the train step has matrix products in loops or functions, whose size is not known'
    multiplications = 0.0
    for operation in operations:
        if operation.type in _PRODUCTS:
            shapes = [tensor.shape for tensor in (*operation.inputs, *operation.outputs)]
            if not all(shape.is_fully_defined() for shape in shapes):
                return 'the train step has matrix products of varying size'
            # The square of m * k * n, for [m, k], [k, n] and [m, n].
            multiplications += math.prod(float(shape.num_elements()) for shape in shapes) ** 0.5
    if multiplications > _MAX_MULTIPLICATIONS:
        return (
            f'its matrix products are too large ({multiplications / 1e6:.0f} million multiplications in a train step)'
        )
    return None
