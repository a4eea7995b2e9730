"""The machine of a job: checks before it begins (memory, disk, file handles, clock),
and a preemption notice.

Google Cloud's notice that a machine is about to be taken away ends the job as a request to stop
would. The job saves a checkpoint and ends with the exit status that asks for another start.
TensorFlow's own `PreemptionCheckpointHandler` does nothing on TPUs. The notice is a value of the
metadata server of each virtual machine
(https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice); SIGTERM comes
later, if at all."""

import contextlib
import http.client
import os
import pathlib
import resource
import shutil
import threading
import time
from collections.abc import Iterator

from absl import logging

from tflearn.core import background
from tflearn.core.errors import UserOSError, UserValueError
from tflearn.core.waiting import PeerStopped, Stopped
from tflearn.replay.storage import Storage

_MOST_FILE_HANDLES = 1 << 20
_MAX_SKEW_SECS = 60.0
_SHARE = 0.9  # of the free memory, that a replay may take by the advice
_MEMINFO = pathlib.Path('/proc/meminfo')
_CGROUP_LIMITS = tuple(map(pathlib.Path, ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')))


def check(
    directory: pathlib.Path,
    what: str,
    memory_bytes: float,
    disk_bytes: float,
    lower: str,
    file_handles: int = 1024,
) -> None:
    """Checks memory, disk, file handles and clock; warns of what is short.

    Args:
      directory: the run directory.
      what: what needs the memory and the disk, for the messages: 'the replay'.
      memory_bytes: the memory that it needs at most.
      disk_bytes: the disk space that its checkpoints need at most.
      lower: the setting that makes both less.
      file_handles: how many open files it needs at most.

    Raises:
      OSError: if there is hardly any room on the disk.
    """
    check_memory(what, memory_bytes, lower)
    check_disk(directory, what, disk_bytes, lower)
    check_file_handles(file_handles)
    check_clock(directory)


def check_memory(what: str, needed: float, lower: str) -> None:
    """Checks the memory of this machine, or of this container if it has a limit.

    It only warns: a replay that is compressed, or never full, takes less.
    """
    available = _available_memory()
    if needed > available:
        text = 'got %s of up to %s of memory; need it within the %s that is free now; stop other programs, or lower %s'
        logging.warning(text, what, _gb(needed), _gb(available), lower)


def check_replay(storage: Storage) -> None:
    """Checks that there is memory for a replay in this process, which takes all of it before the first step.

    Raises:
      ValueError: if there is not.
    """
    replay, needed, available = storage.experience.replay, storage.mirror_bytes, _available_memory()
    if needed <= available:
        return
    fits = int(_SHARE * replay.max_size * available / needed)
    fits -= fits % 10 ** max(0, len(str(fits)) - 2)
    name, rows = type(replay).__name__, storage.experience.slicing.num_rows
    raise UserValueError(
        f'got a replay of {_gb(needed)} for {replay.max_size} sequences of {rows} rows of {storage.layout.num_bytes} '
        f'bytes; need it within the {_gb(available)} of memory that is free now; set {name}.max_size={max(1, fits)}'
    )


def check_disk(directory: pathlib.Path, what: str, needed: float, lower: str) -> None:
    """Checks the free space of the disk; `needed` is that of four checkpoints."""
    free = shutil.disk_usage(_existing(directory)).free
    if free < min(needed / 4, 1 << 20):
        raise UserOSError(f'got {_gb(free)} free on the disk of {directory}; need room to save {what}; make room')
    if free < needed:
        text = 'got %s free on the disk of %s; need up to %s to save %s; make room, or lower %s'
        logging.warning(text, _gb(free), directory, _gb(needed), what, lower)


def check_file_handles(needed: int) -> None:
    """Raises the limit of open files as far as it may be, and warns if it is below `needed`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    most = _MOST_FILE_HANDLES if hard == resource.RLIM_INFINITY else min(_MOST_FILE_HANDLES, hard)
    if (limit := max(soft, most)) > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < needed:
        logging.warning('got at most %d open files (ulimit -Hn); need %d; raise it', limit, needed)


def check_clock(directory: pathlib.Path) -> None:
    """Warns if files of the run are newer than now,
    as after a step of the clock or with machines that differ.
    """
    names = [directory, *directory.glob('*'), *directory.glob('status/*'), *directory.glob('manifests/*')]
    ahead = max((path.stat().st_mtime for path in names if path.exists()), default=0.0) - time.time()
    if ahead > _MAX_SKEW_SECS:
        logging.warning(
            'got a clock that is %.0f s behind the newest file of %s; need the machines of a run to agree, or times '
            'in logs and in the view are wrong (nothing else depends on them); set the clock',
            ahead,
            directory,
        )


def _available_memory() -> float:
    """Returns the memory that is free on this machine,
    within the limits of this container and process [bytes].
    """
    lines = (line.split() for line in _MEMINFO.read_text(encoding='utf-8').splitlines()) if _MEMINFO.exists() else ()
    sizes = {line[0].rstrip(':'): 1024.0 * float(line[1]) for line in lines}
    available = sizes.get('MemAvailable', float('inf'))
    for path in _CGROUP_LIMITS:
        if path.exists() and (text := path.read_text(encoding='utf-8').strip()).isdigit():
            available = min(available, float(text))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        available = min(available, float(address_space))
    return available


def _existing(path: pathlib.Path) -> pathlib.Path:
    return next(parent for parent in (path, *path.parents) if os.path.exists(parent))


def _gb(num_bytes: float) -> str:
    return f'{num_bytes / 1e9:.3g} GB'


_HOST = 'metadata.google.internal'
_HOST_VARIABLE = 'GCE_METADATA_HOST'  # which Google's own libraries read
# By what is asked for, the values that are no notice.
_VALUES = {'maintenance-event': ('NONE', 'MIGRATE_ON_HOST_MAINTENANCE'), 'preempted': ('FALSE',)}
_POLL_SECS, _ANSWER_SECS = 5.0, 2.0


@contextlib.contextmanager
def notices_watched(wanted: bool, stop: threading.Event, poll_secs: float = _POLL_SECS) -> Iterator[None]:
    """Sets `stop` at a notice that comes during a `with` block, on another thread.

    Args:
      wanted: whether to watch at all.
      stop: ends the block soon after it is set.
      poll_secs: time between two questions to the metadata server [s].

    Raises:
      PeerStopped: at the end of the block, if there was a notice: the job has to be started again.
    """
    if not wanted:
        yield
        return
    notices: list[str] = []
    over = threading.Event()
    thread = background.Thread(target=_watch, args=(notices, stop, over, poll_secs), name='preemption')
    thread.start()
    try:
        yield
    except Stopped:
        if not notices:
            raise
    finally:
        over.set()
        thread.join(3 * _ANSWER_SECS)
    if notices:
        raise PeerStopped(f'stopped, because {notices[0]}; start it again: it continues from its checkpoint')


def notice(timeout_secs: float = _ANSWER_SECS) -> str | None:
    """Asks the metadata server once. Returns its notice; None if there is none.

    Raises:
      OSError: if it does not answer, or is not Google's.
    """
    host = os.environ.get(_HOST_VARIABLE) or _HOST
    for name, harmless in _VALUES.items():
        connection = http.client.HTTPConnection(host, timeout=timeout_secs)
        try:
            connection.request('GET', f'/computeMetadata/v1/instance/{name}', headers={'Metadata-Flavor': 'Google'})
            answer = connection.getresponse()
            value = answer.read(1000).decode('utf-8', 'replace').strip()
        except http.client.HTTPException as error:
            raise UserOSError(f'got {error!r} from {host}; need a metadata server of Google') from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK or answer.headers.get('Metadata-Flavor') != 'Google':
            raise UserOSError(f'got status {answer.status} for {name} from {host}; need a metadata server of Google')
        if value.upper() not in harmless:
            return f'this machine has the notice {name}={value}'
    return None


def _watch(notices: list[str], stop: threading.Event, over: threading.Event, poll_secs: float) -> None:
    answered = True
    while not over.is_set():
        try:
            found, answers = notice(), True
        except OSError as error:
            found, answers = None, False
            if answered:  # not each time
                logging.warning('no notice of maintenance can be seen (%s); asking again', error)
        answered = answers
        if found:
            logging.warning('%s: saves a checkpoint, and stops', found)
            notices.append(found)
            stop.set()
            return
        over.wait(poll_secs)
