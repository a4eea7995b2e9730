"""All jobs of a run as processes of this machine, from their configuration on. Loads no TensorFlow."""

import contextlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from tflearn.config import files
from tflearn.errors import UserImportError
from tflearn.launch import local
from tflearn.launch.topology import local_topology
from tflearn.run_dir import RunDir

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(
    run_dir: RunDir,
    gin_file: str,
    gin_bindings: Sequence[str] = (),
    *,
    package: str,
    num_collectors: int = 1,
    replay_address: str | None = None,
    connect_timeout_secs: float = 300.0,
    stop_timeout_secs: float = 30.0,
    warm_start: bool = True,
    code_snapshot: bool = False,
    silent_timeout_secs: float = 300.0,
) -> int:
    """Checks the run's configuration, then runs its jobs until the run has ended.

    Args:
      run_dir: the run's directory.
      gin_file: a path, or the name of a packaged gin file.
      gin_bindings: gin statements that come after it.
      package: the Python package that holds the jobs' programs.
      num_collectors: collect jobs; at least 1.
      replay_address: 'host:port' of the replay server; None: a free port of this machine.
      connect_timeout_secs: how long a job waits for another one.
      stop_timeout_secs: how long a job may take to end.
      warm_start: load the jobs' libraries once, in a process that forks the jobs; else each job loads them itself.
      code_snapshot: record how the code differs from its git revision.
      silent_timeout_secs: a job that has not reported for so long is killed and started again; 0: never.

    Returns:
      An exit code; see `local.run`.

    Raises:
      ValueError: if the configuration is wrong, or the run directory cannot be used.
    """
    path = files.resolve(gin_file)
    flags = [f'--root_dir={run_dir.root}', f'--gin_file={path}']
    flags += [f'--gin_bindings={binding}' for binding in gin_bindings]
    flags += [f'--replay_address={replay_address or local.free_address()}']
    flags += [f'--connect_timeout_secs={connect_timeout_secs:g}', f'--stop_timeout_secs={stop_timeout_secs:g}']
    flags += ['--code_snapshot'] if code_snapshot else []
    topology = local_topology(package=package, flags=flags, num_collectors=num_collectors, warm_start=warm_start)
    from tflearn.config import preview  # Half a second that a wrong flag need not wait for.
    from tflearn.environments import registry

    kinds = sorted({f'tflearn.jobs.{job.kind}' for job in topology.jobs})
    preview.check(path, gin_bindings, kinds, registry.check_factory)
    # The jobs end themselves when that time is over; this is for those that cannot.
    return local.run(
        topology, run_dir, stop_timeout_secs=stop_timeout_secs + 10.0, silent_timeout_secs=silent_timeout_secs
    )


def programs() -> str:
    """Returns the package of the jobs' programs: that beside this package, since there may be another checkout's.

    Raises:
      ImportError: if it cannot be imported.
    """
    for name in ('tflearn_scripts', 'scripts'):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and pathlib.Path(spec.origin).resolve().parents[1] == _ROOT:
            return name
    raise UserImportError(
        f"got no programs of the jobs that belong to {_ROOT / 'tflearn'}; need them importable for mode='processes'; "
        'install the checkout (pip install -e .), or start Python in it'
    )


@contextlib.contextmanager
def same_modules() -> Iterator[None]:
    """Lets processes that are started during the block find the modules that this process finds."""
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ['PYTHONPATH']
        else:
            os.environ['PYTHONPATH'] = before
