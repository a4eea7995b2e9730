"""Starts all jobs of a run: as processes of this machine, or by a scheduler.
Loads no TensorFlow.
"""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from tflearn.api import run_check
from tflearn.config import files, going_on
from tflearn.config.going_on import Effective
from tflearn.core import extensions, extras
from tflearn.core.errors import UserImportError, UserValueError
from tflearn.files.run_dir import RunDir, is_url
from tflearn.launch import local, reports
from tflearn.launch.topology import (
    COORDINATOR_ADDRESS,
    MAX_JOBS,
    OWN_ADDRESS,
    Addresses,
    Topology,
    on_one_machine,
    place,
    read_resources,
    run_topology,
    this_machine,
)
from tflearn.launch.warm_parent import WarmParent

_WITHOUT_RELAYS, _PER_RELAY = 200, 100  # collectors
_ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Backend:
    """Where the jobs of a run are started.

    Attributes:
      name: 'local', or a scheduler.
      options: 'name=value' each, for the scheduler.
      resources: 'KIND:name=value,...' each, see `topology.read_resources`.
      num_workers: processes of the train job, which train as one.
      render: print what would be run, and run nothing.
    """

    name: str = 'local'
    options: Sequence[str] = ()
    resources: Sequence[str] = ()
    num_workers: int = 1
    render: bool = False

    def run(self, topology: Topology, run_dir: RunDir, package: str, warm_parent: WarmParent | None = None) -> int:
        """Runs the jobs on this machine until the run has ended, or submits them.
        Returns the exit code.
        """
        if self.name == 'local':
            if self.options:
                raise UserValueError(
                    f'got --backend_option={self.options[0]} and --backend=local; need none; choose --backend=slurm, '
                    'kubernetes, ray or queued_resources'
                )
            if self.render:
                _show(reports.render(on_one_machine(topology), place(topology, this_machine())))
                return 0
            return local.run(topology, run_dir, warm_parent=warm_parent)
        scheduler = extensions.load(self.name)
        its_options = scheduler.read_options(self.options)
        if self.render:
            _show(scheduler.render(topology, run_dir, package, its_options))
            return 0
        _show(scheduler.submit(topology, run_dir, package, its_options))
        return 0


def run(
    run_dir: RunDir,
    gin_file: str,
    gin_bindings: Sequence[str] = (),
    *,
    package: str,
    num_collectors: int = 1,
    num_replay_servers: int = 1,
    coordinator_address: str | None = None,
    coordinator_alone: bool | None = None,
    connect_timeout_secs: float = 300.0,
    stop_timeout_secs: float = 30.0,
    warm_start: bool = True,
    code_snapshot: bool = False,
    silent_timeout_secs: float = 300.0,
    backend: Backend = Backend(),
    more_flags: Sequence[str] = (),
    num_relays: int | None = None,
    num_feed_workers: int = 0,
) -> int:
    """Checks the run's configuration, then runs its jobs until the run has ended.

    Args:
      run_dir: the run's directory.
      gin_file: a path, or the name of a packaged gin file.
      gin_bindings: gin statements that come after it.
      package: the Python package that holds the jobs' programs.
      num_collectors: collect jobs; at least 1.
      num_replay_servers: replay servers that share the replay.
      coordinator_address: 'host:port' of the coordinator; None: a free port of this machine.
      coordinator_alone: whether it is a program of its own; None: if there are several replay
        servers.
      connect_timeout_secs: how long a job waits for another one.
      stop_timeout_secs: how long a job may take to end.
      warm_start: load the jobs' libraries once, in a process that forks the jobs; else each job
        loads them itself.
      code_snapshot: record how the code differs from its git revision.
      silent_timeout_secs: a job that has not reported for so long is killed and started again; 0:
        never.
      backend: where the jobs run, and what each of them gets.
      more_flags: further ones for all jobs; --replay_backend for the replay servers alone.
      num_relays: relays of weights; None: one for each hundred of more than two hundred collectors.
      num_feed_workers: starts a feed with so many workers, from which the train job gets its
        batches; 0 starts none.

    Returns:
      An exit code; see `local.run`. Under a scheduler 0: the jobs are submitted.

    Raises:
      ValueError: if the configuration is wrong, or the run directory cannot be used.
      RuntimeError: if the scheduler refuses a job.
    """
    path = files.resolve(gin_file)
    its_gin_file = _in_image(path) if backend.name == 'kubernetes' else str(path)
    bindings = (f'--gin_bindings={binding}' for binding in gin_bindings)
    flags = [f'--root_dir={run_dir.location}', f'--gin_file={its_gin_file}', *bindings]
    reserved, several = contextlib.ExitStack(), num_replay_servers > 1
    relays = _default_relays(num_collectors) if num_relays is None else num_relays
    addresses = _addresses(run_dir, backend.name, num_replay_servers, relays, coordinator_address, more_flags, reserved)
    alone = several if coordinator_alone is None else coordinator_alone
    its_flags = (f'--run_dir={run_dir.location}', *(flag for flag in more_flags if '_token=' in flag))
    addresses = dataclasses.replace(addresses, alone=alone, flags=its_flags)
    flags += [f'--connect_timeout_secs={connect_timeout_secs:g}', f'--stop_timeout_secs={stop_timeout_secs:g}']
    flags += ['--code_snapshot'] * code_snapshot + [each for each in more_flags if each not in addresses.replay_flags]
    topology = run_topology(
        package=package,
        flags=flags,
        num_collectors=num_collectors,
        addresses=addresses,
        warm_start=warm_start and backend.name == 'local' and not backend.render,
        resources=read_resources(backend.resources),
        num_workers=backend.num_workers,
        feed_address=_feed_address(backend.name, reserved) if num_feed_workers else '',
        num_feed_workers=num_feed_workers,
    )
    # The jobs end themselves when that time is over; this is for those that cannot.
    topology = dataclasses.replace(
        topology,
        stop_timeout_secs=stop_timeout_secs + 10.0,
        silent_timeout_secs=silent_timeout_secs,
        connect_timeout_secs=connect_timeout_secs,
    )
    with contextlib.closing(reserved), local.ready_warm_parent(topology) as warm_parent:
        effective = _check(path, gin_bindings, topology, several, warm_parent)
        _warn_of_empty_servers(num_replay_servers, num_collectors)
        if backend.name == 'kubernetes':
            topology = dataclasses.replace(topology, gin_files=_own_files(path, effective.files))
        elif not backend.render:
            for line in going_on.begin(run_dir, effective, 'tflearn.jobs.train'):
                _show(line)
        return backend.run(topology, run_dir, package, warm_parent)


def _default_relays(num_collectors: int) -> int:
    return num_collectors // _PER_RELAY if num_collectors > _WITHOUT_RELAYS else 0


def _in_image(path: pathlib.Path) -> str:
    """Returns the gin file's path in a container."""
    packaged = files.folder().resolve()
    if path.resolve().is_relative_to(packaged):
        return path.resolve().relative_to(packaged).as_posix()
    return f'{extensions.load("kubernetes").GIN_FOLDER}/{path.name}'


def _own_files(path: pathlib.Path, read: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the gin files that an image has not,
    by their paths below the folder of the first one.
    """
    packaged, folder = files.folder().resolve(), path.resolve().parent
    resolved = {pathlib.Path(file).resolve(): text for file, text in read.items()}
    own = {file: text for file, text in resolved.items() if not file.is_relative_to(packaged)}
    for file in own:
        if not file.is_relative_to(folder):
            raise UserValueError(
                f'got {path}, which includes {file}; need own files in its folder {folder} or below, since they are '
                'sent with the manifests; move it there'
            )
    return {file.relative_to(folder).as_posix(): text for file, text in own.items()}


def check_location(root_dir: str, backend: str) -> None:
    """Raises a ValueError if a scheduler cannot reach the run directory."""
    if backend != 'local' and is_url(root_dir):
        raise UserValueError(
            f'got root_dir={root_dir} with --backend={backend}; need a directory that all machines share, '
            'or the local backend; elsewhere start the jobs by their programs, which take a URL'
        )


def _warn_of_empty_servers(num_replay_servers: int, num_collectors: int) -> None:
    if num_replay_servers > num_collectors:
        sys.stderr.write(
            f'tflearn-launch: warning: got {num_replay_servers} replay servers for {num_collectors} collectors; each '
            'writes to one of them, so others stay empty; start more collectors\n'
        )


def _show(text: str) -> None:
    sys.stdout.write(f'{text}\n')


def _addresses(
    run_dir: RunDir,
    backend: str,
    num_replay_servers: int,
    num_relays: int,
    coordinator_address: str | None,
    more_flags: Sequence[str],
    reserved: contextlib.ExitStack,
) -> Addresses:
    """Returns the servers' addresses; those that this machine chooses stay reserved until `reserved` is closed."""
    if not 1 <= num_replay_servers <= MAX_JOBS:
        raise UserValueError(f'got num_replay_servers={num_replay_servers!s:.40}; need 1 to {MAX_JOBS}')
    if backend != 'kubernetes':  # whose run directory is in the containers
        run_dir.check_num_shards(num_replay_servers)
    replay_flags = tuple(flag for flag in more_flags if flag.startswith('--replay_backend='))
    if backend != 'local':
        if replay_flags:
            raise UserValueError(
                f'got {replay_flags[0]} with --backend={backend}; need the local backend: that server serves one '
                'machine; elsewhere start tflearn-replay-server with --replay_address=valkey://HOST:PORT'
            )
        own = (OWN_ADDRESS,)
        return Addresses(coordinator_address or COORDINATOR_ADDRESS, own * num_replay_servers, own * num_relays)
    # A reserved port can be taken by Reverb alone.
    is_reverb = not replay_flags and extras.default_replay_backend() == 'reverb'
    hold = local.held_address if is_reverb else _free_address
    try:
        coordinator = coordinator_address or reserved.enter_context(local.held_address())
        replay, relays = (
            tuple(reserved.enter_context(hold_one()) for _ in range(count))
            for count, hold_one in ((num_replay_servers, hold), (num_relays, local.held_address))
        )
    except OSError as error:
        raise UserValueError(
            f'got num_replay_servers={num_replay_servers} and num_relays={num_relays}, for which there are no ports '
            f'({error.strerror}); need fewer'
        ) from error
    return Addresses(coordinator, replay, relays, replay_flags=replay_flags)


@contextlib.contextmanager
def _free_address() -> Iterator[str]:
    yield local.free_address()


def _feed_address(backend: str, reserved: contextlib.ExitStack) -> str:
    """Returns the address of the feed, which is reserved until `reserved` is closed."""
    if backend != 'local':
        raise UserValueError(
            f'got --num_feed_workers with --backend={backend}; need the local backend; elsewhere start tflearn-feed, '
            'and give its --feed_address'
        )
    return reserved.enter_context(local.held_address())


def _check(
    path: pathlib.Path, gin_bindings: Sequence[str], topology: Topology, shared: bool, warm_parent: WarmParent | None
) -> Effective:
    """Checks the configuration of all jobs, and returns it;
    `shared` is whether several servers share the replay.
    """
    # These have flags only, or the replay server's bindings.
    kinds = {job.kind for job in topology.jobs} - {'coordinator', 'relay', 'feed', 'feed_worker'}
    jobs = sorted(f'tflearn.jobs.{kind}' for kind in kinds)
    fed = bool(topology.group('feed'))
    return run_check.ask(run_check.Question(str(path), gin_bindings, jobs, fed, shared), warm_parent)


def programs() -> str:
    """Returns the package of the jobs' programs:
    that beside this package, since there may be another checkout's.

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
    """Makes processes that are started during the block find the modules that this process finds."""
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ['PYTHONPATH']
        else:
            os.environ['PYTHONPATH'] = before
