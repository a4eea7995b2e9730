"""A train step compiled for TPUs that are not here.

TensorFlow lowers the step to HLO in this process. Another process compiles it, in an environment of
its own that has JAX and libtpu (requirements/tpu_compiler/lock.txt), since that libtpu ends a
process that imports TensorFlow. It runs this file as a program:

    python tpu_compiler.py step.hlo v5e 8

All that is taken of private modules of TensorFlow and JAX is here; the lock has exact versions for
that reason.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

KINDS = ('v4', 'v5e', 'v5p', 'v6e')
# By kind: the replicas of a host of the slices that exist, the most hosts, and the HBM of a replica [GiB].
# Two replicas share a chip of v4.
_SLICES = {'v4': (8, 1024, 16), 'v5e': (4, 64, 16), 'v5p': (4, 1536, 95), 'v6e': (4, 64, 32)}
# Slices of these are rectangles of up to 16 x 16 chips, else blocks of 4 x 4 x 4.
_RECTANGLES = 'v5e', 'v6e'
VARIABLE = 'TFLEARN_TPU_COMPILER'
_INSTALL = (
    'python3.12 -m venv ~/tpu_compiler && ~/tpu_compiler/bin/pip install --require-hashes --no-deps '
    '-r requirements/tpu_compiler/hashed/lock.txt'
)
_TIMEOUT_SECS = 1_800.0


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler reports of a train step, for each core.

    Attributes:
      kind: of the TPU.
      replicas: for how many it was compiled.
      sums: the sums over all of them in the train step.
      secs: how long it compiled [s].
      arguments: HBM of the variables and the batch [bytes].
      results: HBM of the results that do not take the place of an argument [bytes].
      temporaries: HBM of everything in between [bytes].
      program: HBM of the program itself [bytes].
      flops: of a train step; the body of a loop counts once.
      accessed: HBM that a train step reads and writes [bytes]; the body of a loop counts once.
      estimated_secs: the compiler's own estimate of a train step [s]; None if a part of the step
        has no estimate.
    """

    kind: str
    replicas: int
    sums: int
    secs: float
    arguments: int
    results: int
    temporaries: int
    program: int
    flops: float
    accessed: float
    estimated_secs: float | None

    @property
    def hbm(self) -> int:
        """All HBM of a core [bytes]."""
        return self.arguments + self.results + self.temporaries + self.program

    def text(self) -> str:
        """Returns the report, for people."""
        capacity = _SLICES[self.kind][2] * 2**30
        took = 'no time' if self.estimated_secs is None else f'{1e6 * self.estimated_secs:.1f} us'
        alone = ''
        if self.replicas > 1 and not self.sums:
            alone = (
                '\n  no replica sums anything with the others: a step of your own needs strategy = '
                f'tpu_compiler.strategy({self.replicas}), the agent made in its scope, and strategy.run(step, ...)'
            )
        return (
            f'compiled for TPU {self.kind} in {self.secs:.1f} s, with {self.sums} sums over {self.replicas} replicas'
            f'{alone}; of each core:\n'
            f'  HBM: {self.hbm:,} of {capacity:,} bytes, {self.hbm / capacity:.2%} (arguments {self.arguments:,}, '
            f'results {self.results:,}, temporaries {self.temporaries:,}, program {self.program:,})\n'
            f'  a train step: {self.flops:,.0f} FLOPs, {self.accessed:,.0f} bytes of HBM read and written (loops '
            f"count once), {took} by the compiler's own estimate"
        )


def check_slice(kind: str, hosts: int, replicas_per_host: int) -> None:
    """Checks that there are slices of a kind of TPU with so many hosts and replicas;
    one replica alone is allowed.

    Raises:
      ValueError: if not; it names those that there are.
    """
    from tflearn.core.errors import UserValueError

    per_host, most, _ = _SLICES[kind]
    found, more = [(1, 1)], f'; and multiples of 16 hosts, up to {most}x{per_host}'
    if kind in _RECTANGLES:
        found, more = [*found, (1, 8)], ''
    found += [(1 << i, per_host) for i in range(7 if kind in _RECTANGLES else 5)]
    is_block = replicas_per_host == per_host and not hosts % 16 and hosts <= most and bool(more)
    if (hosts, replicas_per_host) not in found and not is_block:
        raise UserValueError(
            f'got {hosts}x{replicas_per_host} (hosts x replicas of each) for a TPU {kind}; need a slice that exists: '
            f'{", ".join(f"{here}x{each}" for here, each in found)}{more}'
        )


def python() -> str:
    """Returns the python of the compiler's environment.

    Raises:
      ValueError: if there is none, or this TensorFlow does not lower reductions over replicas.
    """
    import tensorflow as tf

    from tflearn.core.errors import UserValueError

    if tuple(int(part) for part in tf.__version__.split('.')[:2]) < (2, 20):
        raise UserValueError(
            f"got TensorFlow {tf.__version__} for a TPU's compiler; need 2.20 at least, which lowers reductions over "
            'replicas; use the current lane (Python 3.13)'
        )
    path = os.environ.get(VARIABLE, '')
    if not pathlib.Path(path).is_file():
        raise UserValueError(
            f'got {VARIABLE}={path!r}; need the python of an environment with the compiler for TPUs; make it by '
            f'{_INSTALL}, and set {VARIABLE}=~/tpu_compiler/bin/python'
        )
    return path


def strategy(num_replicas: int) -> Any:
    """Returns a strategy that traces one of several replicas:
    reductions over all of them are XLA's all-reduce.

    It stands for a TPUStrategy, which needs TPUs. What is traced in it can be lowered, and not run.
    """
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.python.distribute import one_device_strategy

    def all_reduce(reduce_op: Any, value: Any) -> Any:
        def of_tensor(tensor: Any) -> Any:
            groups = tf.range(num_replicas)[tf.newaxis]
            # TensorFlow's operation has no numbers of 64 bits, which a TPUStrategy has.
            narrow = {tf.float64: tf.float32, tf.int64: tf.int32}.get(tensor.dtype, tensor.dtype)
            summed = gen_xla_ops.xla_all_reduce(tf.cast(tensor, narrow), groups, 'Add', 'CrossReplica')
            summed = tf.cast(summed, tensor.dtype)
            return summed / num_replicas if reduce_op == tf.distribute.ReduceOp.MEAN else summed

        return tf.nest.map_structure(of_tensor, value)

    class Extended(one_device_strategy.OneDeviceExtended):
        @property
        def _num_replicas_in_sync(self) -> int:
            return num_replicas

        def _use_merge_call(self) -> bool:
            return False

        def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
            return all_reduce(reduce_op, value)

        def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
            return all_reduce(reduce_op, value)

    class OneOfMany(tf.distribute.Strategy):
        def __init__(self) -> None:
            super().__init__(Extended(self, '/cpu:0'))

    return OneOfMany()


def compile_hlo(hlo: bytes, kind: str, num_replicas: int) -> Compiled:
    """Compiles a serialized HLO module for a TPU with one core for each replica.

    Raises:
      ValueError: if there is no compiler, its environment is not complete, or it refuses.
    """
    from tflearn.core.errors import UserValueError

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'step.hlo'
        path.write_bytes(hlo)
        # Isolated: the modules beside this file and PYTHONPATH are for another environment.
        command = [python(), '-I', __file__, str(path), kind, str(num_replicas)]
        environment = {**os.environ, 'TPU_SKIP_MDS_QUERY': '1', 'JAX_PLATFORMS': 'cpu'}
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECS, env=environment)
    if done.returncode:
        # Of a traceback the line with the error, which others may follow.
        reasons = re.findall(r'^[\w.]*Error: (.*)', done.stderr, re.MULTILINE)
        reason = reasons[-1] if reasons else f'exit status {done.returncode}'
        if 'ModuleNotFoundError' in done.stderr or 'ImportError' in done.stderr:
            raise UserValueError(
                f'got {VARIABLE}={command[0]}, whose environment lacks a part of the compiler ({reason}); need all of '
                f'its packages in the versions that go together; make it by {_INSTALL}'
            )
        raise UserValueError(
            f'got a train step that the compiler for TPU {kind} refuses ({reason}); need one that it compiles; change '
            'what it names'
        )
    return Compiled(kind, num_replicas, **json.loads(done.stdout.splitlines()[-1]))


def topology(kind: str, num_replicas: int) -> str:
    """Returns the name of the smallest slice with a core for each replica; a chip of v4 has two."""
    chips = -(-num_replicas // 2) if kind == 'v4' else num_replicas
    if kind in ('v4', 'v5p'):
        return f'{kind}:2x2x{chips // 4}' if chips % 4 == 0 else f'{kind}:1x1x{chips}'
    rows = 1 << ((chips.bit_length() - 1) // 2)
    return f'{kind}:{rows}x{chips // rows}'


def main(path: str, kind: str, num_replicas: int) -> None:
    """Compiles a file, and prints the fields of `Compiled` as JSON.
    In the compiler's environment.
    """
    import time

    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    devices = topologies.get_topology_desc(topology(kind, num_replicas), 'tpu').devices[:num_replicas]
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = num_replicas, 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(num_replicas)[:, np.newaxis])
    artifact = xla_client._xla.mlir.hlo_to_stablehlo(pathlib.Path(path).read_bytes())
    with mlir.make_ir_context() as context:
        text = str(stablehlo.deserialize_portable_artifact(context, artifact))
        sums = text.count('stablehlo.all_reduce')
        # HLO's copies have no word in StableHLO; a barrier keeps a value apart, too.
        module = ir.Module.parse(re.sub(r'\bmhlo\.copy\b', 'stablehlo.optimization_barrier', text))
        start = time.perf_counter()
        executable = devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)
    memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
    # The compiler adds a large negative number for what it has no estimate of.
    estimate = cost.get('optimal_seconds', -1.0)
    found = {
        'sums': sums,
        'secs': time.perf_counter() - start,
        'arguments': memory.argument_size_in_bytes,
        'results': memory.output_size_in_bytes - memory.alias_size_in_bytes,
        'temporaries': memory.temp_size_in_bytes,
        'program': memory.generated_code_size_in_bytes,
        'flops': cost.get('flops', 0.0),
        'accessed': cost.get('bytes accessed', 0.0),
        'estimated_secs': estimate if estimate >= 0.0 else None,
    }
    sys.stdout.write(json.dumps(found) + '\n')


if __name__ == '__main__':
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
