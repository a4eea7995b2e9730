"""A cluster of Ray on this machine: a head node that runs no job, and nodes that do, each a tree of processes."""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

_INSTALL, _PYTHON = 'TFLEARN_TEST_INSTALL', 'TFLEARN_TEST_RAY_PYTHON'
_SETTINGS = {
    'RAY_AUTH_MODE': 'token',
    'RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER': '0',  # all nodes are 127.0.0.1
    'RAY_USAGE_STATS_ENABLED': '0',
    'RAY_enable_worker_prestart': '0',
    'RAY_health_check_period_ms': '1000',
    'RAY_memory_usage_threshold': '0.99',  # of a machine that others use too
    'RAY_prestart_worker_first_driver': '0',
}
# Starts a node for each line that it reads, and writes the process that all others of the node descend from.
_PROGRAM = """
import json, sys
from ray.cluster_utils import Cluster
memory = {'object_store_memory': 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 0, 'include_dashboard': False, **memory})
print(json.dumps(cluster.address), flush=True)
for line in sys.stdin:
    node = cluster.add_node(num_cpus=int(line), **memory)
    print(json.dumps(node.all_processes['raylet'][0].process.pid), flush=True)
"""


class RayNodes:
    """The cluster.

    Attributes:
      python: the interpreter that has Ray.
      address: of the head node.
      environment: that of the programs that talk to it.
    """

    def __init__(self, python: str, root: pathlib.Path):
        """Starts the head node."""
        self.python = python
        self.environment = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
        self.environment |= {**_SETTINGS, 'RAY_TMPDIR': str(root), 'RAY_AUTH_TOKEN': secrets.token_hex(32)}
        self._nodes: dict[str, int] = {}
        self._lost: list[str] = []
        with open(root / 'head.out', 'ab') as out:
            self._head = subprocess.Popen(
                [python, '-I', '-c', _PROGRAM],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )
        self.address = self._read()

    def _read(self) -> str:
        assert self._head.stdout
        # Ray's own lines come before, and pytest's deadline is that of the wait.
        for line in self._head.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise AssertionError(f'the head node ended with {self._head.wait()}')

    def add(self, name: str, cpus: int) -> None:
        """Starts a node, and waits until it is there."""
        assert self._head.stdin
        self._head.stdin.write(f'{cpus}\n')
        self._head.stdin.flush()
        self._nodes[name] = int(self._read())

    def node_of(self, pid: int) -> str:
        """Returns the node that a process runs on; '' if on none."""
        roots, parents = {root: name for name, root in self._nodes.items()}, _parents()
        while pid > 1:
            if pid in roots:
                return roots[pid]
            pid = parents.get(pid, 0)
        return ''

    def lose(self, name: str) -> None:
        """Kills a node with all that runs on it, as when a machine loses its power."""
        _kill(self._nodes.pop(name))
        self._lost.append(name)

    def restore(self, cpus: int = 5) -> None:
        """Starts the nodes again that were lost."""
        while self._lost:
            self.add(self._lost.pop(), cpus)

    def stop(self) -> None:
        """Kills all that is left."""
        _kill(self._head.pid)
        self._head.wait(10)


def _kill(root: int) -> None:
    """Kills a process and all that descend from it; stops them first, so that none starts others meanwhile."""
    pids = [root, *_below(root)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _parents() -> dict[int, int]:
    parents = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(')')[2].split()[1])
    return parents


def _below(pid: int) -> list[int]:
    """Returns the processes that descend from one, the nearest first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def _python(root: pathlib.Path) -> str:
    """Returns a Python that has Ray; makes one if it may. Skips the test otherwise."""
    if python := os.environ.get(_PYTHON):
        return python
    if not os.environ.get(_INSTALL):
        pytest.skip(f'no Python with Ray: {_PYTHON}=/path/to/python names one, {_INSTALL}=1 installs it')
    subprocess.run([sys.executable, '-m', 'venv', str(root / 'env')], timeout=120, check=True)
    python = str(root / 'env' / 'bin' / 'python')
    subprocess.run([python, '-m', 'pip', 'install', '-q', 'ray>=2.40,<3'], timeout=600, check=True)
    return python


@contextlib.contextmanager
def cluster(nodes: int = 3, cpus: int = 5) -> Iterator[RayNodes]:
    """A running cluster. Skips the test where there is no Ray and it may not be installed."""
    with tempfile.TemporaryDirectory(prefix='ray', ignore_cleanup_errors=True) as root:  # short: the path of a socket
        made = RayNodes(_python(pathlib.Path(root)), pathlib.Path(root))
        try:
            for node in range(nodes):
                made.add(f'node{node}', cpus)
            yield made
        finally:
            made.stop()
