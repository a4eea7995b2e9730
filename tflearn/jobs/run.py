"""Run: what a job gets from its program, not from a gin file:
where the run is, its other jobs, and when it ends.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping

from absl import logging

from tflearn.core.access import Access
from tflearn.files.run_dir import RunDir
from tflearn.files.status import Status


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What a program does during its job.

    Attributes:
      on_restored: called when the checkpoint was restored, before anything is written to the run
        directory.
      describe: called before the first train step; returns markdown texts by tag that TensorBoard
        shows, and that describe the environment of recorded episodes.
      on_exported: the synchronous job calls it with the train step of policies that are exported,
        or soon will be.
      on_evaluated: called when the evaluate job has nothing more to do up to a train step. None:
        nobody waits for that.
    """

    on_restored: Callable[[], None] = lambda: None
    describe: Callable[[], Mapping[str, str]] = dict
    on_exported: Callable[[int], None] = lambda step: None
    on_evaluated: Callable[[float], None] | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """The run that a job belongs to.

    Attributes:
      dir: the run's directory; of a worker of the learner, its own one.
      stop: ends the job when set; what has to be saved is saved.
      coordinator: where the coordinator is.
      name: the job's name; that of a collector is unique within the run.
      replay_address: the address at which others reach a replay server, 'host:port'. Reverb listens
        at the port on all interfaces, Valkey on this machine only. 'valkey://host:port' is a server
        of Valkey's that runs already, or 'valkeys://host:port' over TLS.
      connect_timeout_secs: how long to wait for other jobs, for the first weights and for the first
        policy.
      stop_timeout_secs: the time that a replay server has to end once it is stopped; a save that
        takes longer is not begun.
      hooks: what the program does during the job.
    """

    dir: RunDir
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    coordinator: Access = Access()
    name: str = 'collect_0'
    replay_address: str = ''
    connect_timeout_secs: float = 300.0
    stop_timeout_secs: float = 30.0
    hooks: Hooks = Hooks()
    _statuses: dict[str, Status] = dataclasses.field(default_factory=dict)

    def status(self, name: str) -> Status:
        """Returns the status of a job, to be updated; each time the same one, with its metrics."""
        return self._statuses.setdefault(name, Status(self.dir.status(name)))

    def is_done(self, more: str = '') -> bool:
        """Returns whether the run has reached its end, and logs it, with `more` behind."""
        line = self.dir.done_line()
        if line is not None:
            logging.info('%s%s', line, more)
        return line is not None
