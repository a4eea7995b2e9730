"""Preemption: Google Cloud's notice that a machine is about to be taken away ends the job as a request to stop would.

The job saves a checkpoint and ends with the exit status that asks for another start. TensorFlow's own
`PreemptionCheckpointHandler` does nothing on TPUs. The notice is a value of the metadata server of each virtual machine
(https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice); SIGTERM comes later, if at all.
"""

import contextlib
import http.client
import os
import threading
from collections.abc import Iterator

from absl import logging

from tflearn.core import background
from tflearn.core.errors import UserOSError
from tflearn.core.waiting import PeerStopped, Stopped

_HOST = 'metadata.google.internal'
_HOST_VARIABLE = 'GCE_METADATA_HOST'  # which Google's own libraries read
# By what is asked for, the values that are no notice.
_VALUES = {'maintenance-event': ('NONE', 'MIGRATE_ON_HOST_MAINTENANCE'), 'preempted': ('FALSE',)}
_POLL_SECS, _ANSWER_SECS = 5.0, 2.0


@contextlib.contextmanager
def watched(wanted: bool, stop: threading.Event, poll_secs: float = _POLL_SECS) -> Iterator[None]:
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
