"""Strategies: makes a tf.distribute strategy by its name;
the layout of its replicas, workers and input pipelines.

TF_CONFIG, which names several workers, is checked first: TensorFlow hangs on most mistakes in it.
Batches that the host makes are divided among the replicas of this process.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.background import ending_after
from tflearn.core.errors import UserValueError
from tflearn.core.waiting import is_listening, wait_until

_NAMES = "'default', 'cpu', 'gpu', 'mirrored', 'mirrored:N' with N from 1, 'multi_worker', 'tpu' or 'tpu:<address>'"
_START_TIMEOUT_SECS = 600.0
_CONNECT_TIMEOUT_SECS = 5.0

_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
_JOBS = ('chief', 'worker')


def make(name: str, timeout_secs: float = _START_TIMEOUT_SECS) -> tf.distribute.Strategy:
    """Makes a strategy.

    Args:
      name: 'default' is one replica on the first device, 'cpu' on the CPU, 'gpu' on the first GPU;
        'mirrored' is one replica on each GPU of this machine; 'mirrored:N' is N replicas on the
        first N logical devices (GPUs if there are any, else CPUs); 'multi_worker' is a replica on
        each GPU (or the CPU) of each machine in the environment variable TF_CONFIG; 'tpu:local' is
        a TPU of this machine, 'tpu:<address>' one at 'host:port' or of that name in Google Cloud,
        'tpu' the one in the environment variable TPU_NAME. 'multi_worker' must be made before any
        other TensorFlow operation.
      timeout_secs: how long to wait for the other workers, or for the TPU. Nothing can interrupt
        TensorFlow there: after this time the process ends, with the stacks of its threads and exit
        status 1.

    Raises:
      ValueError: if the name is unknown, the machine has too few devices for it, or TF_CONFIG is
        not valid.
      RuntimeError: if there is no TPU, or TensorFlow ran before 'multi_worker' was made.
      TimeoutError: if nothing listens at the TPU's address.
    """
    kind, separator, detail = name.partition(':')
    if kind == 'mirrored' and (not separator or (detail.isdecimal() and int(detail) > 0)):
        return _mirrored(name, int(detail) if separator else None)
    if kind == 'tpu' and (detail or not separator):
        return _tpu(name, detail, timeout_secs)
    if name == 'default':
        return tf.distribute.get_strategy()
    if name == 'cpu':
        return tf.distribute.OneDeviceStrategy('/cpu:0')
    if name == 'gpu':
        if not tf.config.list_logical_devices('GPU'):
            raise UserValueError(
                "got strategy='gpu'; need a GPU that TensorFlow sees (tf.config.list_physical_devices('GPU') is "
                "empty); check the driver and CUDA_VISIBLE_DEVICES, or use 'cpu'"
            )
        return tf.distribute.OneDeviceStrategy('/gpu:0')
    if name == 'multi_worker':
        return _multi_worker(timeout_secs)
    raise UserValueError(f'got strategy={name!r}; need {_NAMES}')


def describe_devices(strategy: tf.distribute.Strategy, devices: pathlib.Path = pathlib.Path('/dev')) -> str:
    """Describes in one line the devices of this process that train,
    and a GPU that TensorFlow cannot use, if any.
    """
    if tf.distribute.get_strategy() is strategy:  # the default strategy does not list its devices
        first = tf.config.list_logical_devices('GPU') or tf.config.list_logical_devices('CPU')
        names = [first[0].name]
    else:
        names = strategy.extended.worker_devices
    counts = collections.Counter(tf.DeviceSpec.from_string(name).device_type for name in names)
    line = f'training on {" and ".join(f"{count} {kind} device(s)" for kind, count in counts.items())}'
    if tf.config.list_physical_devices('GPU') or 'TPU' in counts:
        return line
    if any(devices.glob('nvidia[0-9]*')):
        return (
            f'{line}; this machine has an NVIDIA GPU that TensorFlow does not see: check CUDA_VISIBLE_DEVICES, the '
            f"driver and the CUDA libraries (pip install 'tensorflow[and-cuda]=={tf.__version__}')"
        )
    return f'{line}; TensorFlow sees no GPU'


def use_threads(inter_op: int | None, intra_op: int | None = None) -> None:
    """Sets the numbers of TensorFlow's threads; None keeps TensorFlow's default.

    Args:
      inter_op: threads that run operations concurrently, at least 1.
      intra_op: threads that share one operation, at least 1.

    Raises:
      RuntimeError: if TensorFlow has started with another number.
    """
    if inter_op is not None:
        tf.config.threading.set_inter_op_parallelism_threads(inter_op)
    if intra_op is not None:
        tf.config.threading.set_intra_op_parallelism_threads(intra_op)


@dataclasses.dataclass(frozen=True)
class ReplicaLayout:
    """The numbers of replicas, input pipelines and workers, and the index of this worker.

    Attributes:
      replicas: number of replicas on all workers.
      input_pipelines: calls of a dataset function over all workers.
      worker: index of this process among those that run the same program.
      workers: number of these processes.
      is_chief: whether this process writes the files that only one worker may write.
    """

    replicas: int
    input_pipelines: int
    worker: int
    workers: int
    is_chief: bool

    @property
    def replicas_per_pipeline(self) -> int:
        """Replicas that each input pipeline feeds:
        the batches that it provides for one train step.
        """
        return self.replicas // self.input_pipelines

    def describe(self, per_replica_batch_size: int) -> str:
        """Describes replicas and batch sizes in one line."""
        line = (
            f'{self.replicas} replica(s) fed by {self.input_pipelines} input pipeline(s), '
            f'{self.replicas_per_pipeline} each; batch {per_replica_batch_size} per replica, '
            f'{per_replica_batch_size * self.replicas} global'
        )
        chief = ', the chief' if self.is_chief else ''
        return line if self.workers == 1 else f'{line}; worker {self.worker} of {self.workers}{chief}'


def layout(strategy: tf.distribute.Strategy) -> ReplicaLayout:
    """Returns the layout of a strategy, as this process sees it."""
    replicas = strategy.num_replicas_in_sync
    if isinstance(strategy, tf.distribute.TPUStrategy):  # one process drives all hosts
        return ReplicaLayout(replicas, strategy.extended.num_hosts, 0, 1, True)
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return ReplicaLayout(replicas, 1, 0, 1, True)
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().as_dict()
    chiefs = len(jobs.get('chief', ()))
    worker = resolver.task_id + (chiefs if resolver.task_type == 'worker' else 0)
    workers = max(chiefs + len(jobs.get('worker', ())), 1)
    return ReplicaLayout(replicas, workers, worker, workers, worker == 0)


def _mirrored(name: str, count: int | None) -> tf.distribute.Strategy:
    gpus = tf.config.list_logical_devices('GPU')
    devices = [device.name for device in gpus or tf.config.list_logical_devices('CPU')]
    if count and count > len(devices):
        raise UserValueError(f'got strategy={name!r}; this machine has {len(devices)} device(s): {", ".join(devices)}')
    # CPUs of one process share their memory; collectives would allow only one group size in a
    # process.
    cross_device_ops = None if gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices[:count], cross_device_ops)


def _multi_worker(timeout_secs: float) -> tf.distribute.Strategy:
    addresses, _ = read_tf_config(os.environ.get('TF_CONFIG'))
    implementations = tf.distribute.experimental.CommunicationImplementation
    # Without GPUs there is only one; with GPUs TensorFlow chooses.
    gpus = tf.config.list_physical_devices('GPU')
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.AUTO if gpus else implementations.RING
    )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with ending_after(timeout_secs, f'{len(addresses)} worker(s): {", ".join(addresses)}'):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        raise RuntimeError(
            f"got strategy='multi_worker' too late ({error}); need it made before any other TensorFlow operation; "
            'make it first in the process'
        ) from error
    finally:
        # TensorFlow's server replaces the handler of SIGTERM: the signal would not end this
        # process.
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _tpu(name: str, target: str, timeout_secs: float) -> tf.distribute.Strategy:
    target = target or os.environ.get('TPU_NAME', '')
    if not target:
        raise UserValueError(f"got strategy={name!r} and no TPU_NAME; need the TPU's address; use 'tpu:<address>'")
    address = target.removeprefix('grpc://')
    if ':' in address:
        target = f'grpc://{address}'
        if not address.rpartition(':')[2].isdecimal():
            raise UserValueError(f'got the TPU address {address!r}; need host:port')
        # TensorFlow itself would wait forever if nothing listens there.
        there = lambda: is_listening(address, _CONNECT_TIMEOUT_SECS)  # noqa: E731
        wait_until(there, f'a TPU worker at {address}', timeout_secs, poll_secs=1.0)
    try:
        with ending_after(timeout_secs, f'the start of the TPU {target}'):
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(target)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
    except (OSError, ValueError, RuntimeError, ImportError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RuntimeError(
            f'got strategy={name!r}, but no TPU starts at {target!r} ({reason}); need a TPU and a TensorFlow made for '
            "it; see docs/distributed.md, or use 'cpu' or 'gpu'"
        ) from error


def read_tf_config(text: str | None) -> tuple[tuple[str, ...], int]:
    """Reads TF_CONFIG: 'host:port' of every worker, the chief first,
    and the index of this process among them.

    Args:
      text: the environment variable's value; None if it is not set.

    Raises:
      ValueError: if MultiWorkerMirroredStrategy would not accept it; names the mistake.
    """
    if not text:
        raise _wrong('no TF_CONFIG in the environment')
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f'TF_CONFIG={text!r:.1000}, which is not JSON ({error})') from error
    parts = value if isinstance(value, dict) else {}
    cluster, task = parts.get('cluster'), parts.get('task')
    if not isinstance(cluster, dict) or not cluster or not isinstance(task, dict):
        raise _wrong(f"TF_CONFIG={text!r} without the objects 'cluster' and 'task'")
    addresses = _addresses(cluster)
    job, index = task.get('type'), task.get('index')
    if job not in cluster:
        raise _wrong(f'the task type {job!r} in TF_CONFIG; the cluster has {", ".join(cluster)}')
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(cluster[job]):
        raise _wrong(f'the task index {index!r} in TF_CONFIG; the cluster has {len(cluster[job])} of type {job!r}')
    first = len(cluster.get('chief', ())) if job == 'worker' else 0
    return tuple(addresses), first + index


def _addresses(cluster: dict[str, Any]) -> list[str]:
    if others := sorted(set(cluster) - set(_JOBS)):
        raise _wrong(f'the job(s) {", ".join(others)} in the cluster of TF_CONFIG, which do not train')
    found: list[str] = []
    for job in _JOBS:
        addresses = cluster.get(job, [])
        if not isinstance(addresses, list) or (job in cluster and not addresses):
            raise _wrong(f'{addresses!r} as the addresses of {job!r} in TF_CONFIG')
        found += addresses
    if len(cluster.get('chief', ())) > 1:
        raise _wrong(f'{len(cluster["chief"])} chiefs in TF_CONFIG')
    for address in found:
        host, _, port = address.rpartition(':') if isinstance(address, str) else ('', '', '')
        if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 1 << 16:
            raise _wrong(f'the address {address!r} in TF_CONFIG, which is not host:port')
    if len(set(found)) < len(found):
        raise _wrong(f'the same address twice in TF_CONFIG: {", ".join(found)}')
    return found


def _wrong(what: str) -> UserValueError:
    return UserValueError(f'got {what}; need e.g. {_EXAMPLE}; set it on each worker, with its own index')


def check_divides(spec: Any, num_parts: int) -> None:
    """Checks that the batch of each tensor can be divided among replicas.

    Args:
      spec: nest of tensor specs (or tensors) [N, ...], the batch for all replicas of this process.
      num_parts: the number of these replicas.

    Raises:
      ValueError: if a tensor has no batch dimension, one of unknown size, or one that does not
        divide; it names the tensor.
    """
    if num_parts == 1:
        return
    for name, leaf in nest_utils.flatten_with_joined_paths(spec):
        size = leaf.shape[0] if leaf.shape.rank else None
        if size is None or size % num_parts:
            larger = -(-(size or 1) // num_parts) * num_parts
            raise UserValueError(
                f'got {name} of the shape {leaf.shape} in the batch for {num_parts} replicas; need a number of items '
                f'that {num_parts} divides; make the batch {larger} items, or use other replicas'
            )


def divided(strategy: tf.distribute.Strategy, element: Any, num_parts: int) -> Any:
    """Returns a batch as one value for each replica, for `strategy.run`. In cross-replica context.

    A tensor that all replicas are given is copied to each of them as a whole. So the host divides
    the batch, and the copy of a part to its device begins as soon as the part is there, while the
    replicas may still be busy.

    The parts are tensors on the devices of their replicas; for a TPU and for CPUs on the host.

    Args:
      strategy: the strategy of the replicas.
      element: nest of tensors [N, ...] on the host, the batch for all replicas of this process.
      num_parts: their number; replica i of this process gets part i, [N / num_parts, ...].

    Raises:
      ValueError: see `check_divides`.
    """
    if num_parts == 1:
        return element
    check_divides(element, num_parts)
    with tf.device('CPU:0'):
        columns = [tf.split(column, num_parts) for column in tf.nest.flatten(element)]
    return distributed(strategy, [tf.nest.pack_sequence_as(element, list(own)) for own in zip(*columns, strict=True)])


def distributed(strategy: tf.distribute.Strategy, parts: Sequence[Any]) -> Any:
    """Returns one value for each replica, for `strategy.run`. In cross-replica context;
    see `divided`.

    Args:
      strategy: the strategy of the replicas.
      parts: a nest of tensors on the host for each replica of this process.
    """
    if strategy.num_replicas_in_sync == 1:
        device = only_stop(strategy)
        return parts[0] if device is None else tf.nest.map_structure(functools.partial(on, device), parts[0])
    if len(parts) == 1:
        return parts[0]
    devices = [_first_stop(device) for device in strategy.extended.worker_devices]
    placed = [
        tf.nest.map_structure(functools.partial(on, device), part) for device, part in zip(devices, parts, strict=True)
    ]
    return strategy.experimental_distribute_values_from_function(
        lambda context: placed[context.replica_id_in_sync_group % len(placed)]
    )


def only_stop(strategy: tf.distribute.Strategy) -> str | None:
    """Returns where the batch of a process's only replica goes as soon as it is there;
    None if it can stay.
    """
    if isinstance(strategy, tf.distribute.OneDeviceStrategy | tf.distribute.MirroredStrategy):
        (device,) = strategy.extended.worker_devices
    elif isinstance(strategy, tf.distribute.TPUStrategy):
        return None
    else:  # the default strategy does not list its devices
        device = (tf.config.list_logical_devices('GPU') or tf.config.list_logical_devices('CPU'))[0].name
    return _first_stop(device)


def _first_stop(device: str) -> str | None:
    """Returns where a part goes as soon as it is there; None if it can stay.

    That is its replica's device, but for a TPU, whose memory only its own programs fill, the host
    of that device.
    """
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == 'CPU':  # has the host's memory
        return None
    return spec.replace(device_type='CPU', device_index=0).to_string() if spec.device_type == 'TPU' else device


def on(device: str | None, part: tf.Tensor) -> tf.Tensor:
    """Returns a tensor on a device; None leaves it where it is."""
    if device is None:
        return part
    with tf.device(device):
        return tf.identity(part)


_tracing = threading.local()  # replicas are traced in threads of their own


@contextlib.contextmanager
def compiling(wanted: bool) -> Iterator[None]:
    """Within it, what this thread traces by `compiled` is compiled with XLA, if wanted."""
    before, _tracing.compiles = getattr(_tracing, 'compiles', False), wanted
    try:
        yield
    finally:
        _tracing.compiles = before


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of tensors, for replica context; compiled with XLA within `compiling`.

    TensorFlow reduces over the replicas outside of XLA's programs: the function does not.
    """
    if not getattr(_tracing, 'compiles', False):
        return function
    return tf.function(function, autograph=False, jit_compile=True)
