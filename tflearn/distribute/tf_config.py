"""TF_CONFIG: the addresses of the workers, and the index of this one. TensorFlow hangs on most mistakes in it."""

import dataclasses
import json
from typing import Any

from tflearn.errors import UserValueError

_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
_JOBS = ('chief', 'worker')


@dataclasses.dataclass(frozen=True)
class Task:
    """A process of a cluster.

    Attributes:
      addresses: 'host:port' of every worker, the chief first.
      index: index of this process among them.
    """

    addresses: tuple[str, ...]
    index: int


def read(text: str | None) -> Task:
    """Reads TF_CONFIG.

    Args:
      text: the environment variable's value; None if it is not set.

    Raises:
      ValueError: if MultiWorkerMirroredStrategy would not accept it; names the mistake.
    """
    if not text:
        raise _wrong('no TF_CONFIG in the environment')
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong(f'TF_CONFIG={text!r}, which is not JSON ({error})') from error
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
    return Task(tuple(addresses), first + index)


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
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise _wrong(f'the address {address!r} in TF_CONFIG, which is not host:port')
    if len(set(found)) < len(found):
        raise _wrong(f'the same address twice in TF_CONFIG: {", ".join(found)}')
    return found


def _wrong(what: str) -> UserValueError:
    return UserValueError(f'got {what}; need e.g. {_EXAMPLE}; set it on each worker, with its own index')
