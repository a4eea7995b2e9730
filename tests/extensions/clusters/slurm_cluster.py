"""A Slurm cluster of three nodes on this machine: its own munged, slurmctld and a slurmd for each node."""

import contextlib
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tflearn.launch.local import free_port

NODES = ('node1', 'node2', 'node3')
_PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch')
_PACKAGES = ('slurmctld', 'slurmd', 'slurm-client', 'munge')
_INSTALL = 'TFLEARN_TEST_INSTALL'
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
SchedulerParameters=bf_interval=2,sched_interval=5
KillWait=60
{nodes}
DefMemPerCPU=500
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The cluster's daemons.

    Attributes:
      environment: that of the programs that talk to it.
    """

    def __init__(self, root: pathlib.Path):
        self._root, self._daemons = root, {}
        user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()
        nodes = '\n'.join(
            f'NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=8 RealMemory=8000'
            for node in NODES
        )
        text = _CONFIGURATION.format(host=host, controller_port=free_port(), user=user, root=root, nodes=nodes)
        (root / 'slurm.conf').write_text(text)
        self.environment = {**os.environ, 'SLURM_CONF': str(root / 'slurm.conf')}

    def start(self) -> None:
        """Starts all daemons and waits until the nodes are there."""
        root = self._root
        for name in ('state', *(f'spool.{node}' for node in NODES)):
            (root / name).mkdir()
        key = root / 'munge.key'
        key.touch(mode=0o400)
        key.chmod(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {'socket': 'socket', 'pid-file': 'pid', 'log-file': 'log', 'seed-file': 'seed'}
        options = [f'--{option}={root}/munge.{end}' for option, end in files.items()]
        self._start('munged', 'munged', '--foreground', '--force', f'--key-file={key}', *options)
        wait_for(lambda: (root / 'munge.socket').exists(), 'munged')
        self._start('slurmctld', 'slurmctld', '-D', '-i')
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.run('sinfo', '-h', '-o', '%t %D').split() == ['idle', '3'], 'the nodes')

    def start_node(self, node: str) -> None:
        """Starts a node's daemon, for the first time or after `lose`."""
        self._start(node, 'slurmd', '-D', '-N', node)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=f'{os.environ["PATH"]}:/usr/sbin:/sbin')
        with open(self._root / f'{name}.out', 'ab') as out:
            self._daemons[name] = subprocess.Popen(
                ['nice', '-n', '19', path, *arguments], env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )

    def run(self, *command: str) -> str:
        """Returns the output of a program of Slurm; '' if it fails."""
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return ended.stdout

    def node_of(self, job: str) -> str:
        """Returns the first node that a job, such as '12' or '12_0', runs on; '' if it does not."""
        return self.run('squeue', '-h', '-j', job, '-t', 'RUNNING', '-o', '%B').strip()

    def processes(self, node: str = '') -> list[int]:
        """Returns the processes of jobs, on `node` or on all."""
        marks = [f'SLURM_CONF={self._root}/slurm.conf', *([f'SLURMD_NODENAME={node}'] if node else ['SLURM_JOB_ID'])]
        found = []
        for path in pathlib.Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                environment = path.joinpath('environ').read_text(errors='replace').split('\0')
                if all(any(word.startswith(mark) for word in environment) for mark in marks):
                    found.append(int(path.name))
        return found

    def lose(self, node: str) -> None:
        """Kills a node with everything on it: its daemon and the steps' daemons first, so that none reports an end."""
        daemon, jobs = self._daemons.pop(node), self.processes(node)
        steps = {parent for pid in jobs if _name(parent := _parent(pid)) == 'slurmstepd'}
        assert steps, f'no job runs on {node}'
        for pid in (daemon.pid, *steps, *jobs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait(10)

    def stop(self) -> None:
        """Kills all that is left of the cluster and of its jobs."""
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait(10)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1])
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(f'/proc/{pid}/comm').read_text().strip()
    return ''


@contextlib.contextmanager
def cluster() -> Iterator[SlurmCluster]:
    """A running cluster. Skips the test where there is no Slurm and it may not be installed."""
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=f'{os.environ["PATH"]}:/usr/sbin:/sbin')]
    if missing and not os.environ.get(_INSTALL):
        pytest.skip(f'no {", ".join(missing)}: install {" ".join(_PACKAGES)}, or set {_INSTALL}=1 (Debian, root)')
    if missing:
        environment = {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}
        for command in (['update'], ['install', '-y', '--no-install-recommends', *_PACKAGES]):
            subprocess.run(['apt-get', '-qq', *command], env=environment, timeout=300, check=True)
    with tempfile.TemporaryDirectory(prefix='slurm') as root:  # short: the path of a socket
        made = SlurmCluster(pathlib.Path(root))
        try:
            made.start()
            yield made
        finally:
            made.stop()


def wait_for(condition: Callable[[], Any], what: str, secs: float = 60.0) -> float:
    """Waits until `condition` is true; returns how long that took [s]."""
    start, pause = time.monotonic(), threading.Event()
    while not condition():
        assert time.monotonic() - start < secs, f'timed out after {secs:g} s waiting for {what}'
        pause.wait(0.2)
    return time.monotonic() - start
