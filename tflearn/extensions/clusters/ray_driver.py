"""Runs the jobs of a run as Ray's actors until the run has ended.
A program of its own: `ray_cluster` starts it.

Usage: ray_driver.py < PLAN, the JSON file that `ray_cluster.plan` describes.

It is for a Python that has Ray, and imports nothing else outside the standard library: Ray's
protobuf and TensorFlow's differ. Each actor runs one process, the supervisor of a job, in a place
of one placement group. Ray starts an actor again on another node when its own is lost. When this
program ends, however it does, all jobs are stopped.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

_MAX_MOVES = 50  # as often as Slurm requeues a job
_MAX_KILLS = 20  # of a supervisor
_MAX_CALLS = 10  # of an actor at the same time
_POLL_SECS = 1.0
_STOP_MARGIN_SECS = 20.0  # what the supervisor needs besides the job
_WAITING_LINE_SECS = 60.0
_VIEW_SECS = 5.0  # until the end of a run is seen in its files, and shown
_STOPPED = 128 + signal.SIGTERM
_NAMESPACE = 'tflearn'
# What belongs to the machine, not to the launcher.
_OF_MACHINE = ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'HOSTNAME', 'TMPDIR', 'TFLEARN_HOST')
_WAIT_FOR_LINE = 'read -r line && exec "$@" </dev/null'  # of standard input; it may end without one


class JobActor:
    """Runs the supervisor of a job."""

    def __init__(self, job: Mapping[str, Any], environment: Mapping[str, str]):
        """Starts nothing yet.

        Args:
          job: one of the plan's jobs.
          environment: the launcher's environment variables.
        """
        self._job, self._environment = job, environment
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._process: subprocess.Popen | None = None
        self._running = threading.Lock()
        self._code: int | None = None

    def run(self) -> int:
        """Runs the job on this node. Returns the supervisor's exit code.

        Ray calls it again while it runs, when the actor did not answer for a while; both calls
        return the same.
        """
        import ray

        context = ray.get_runtime_context()
        address = ray.util.get_node_ip_address()
        moved = context.was_current_actor_reconstructed
        with self._running:
            if self._code is None:
                self._code = self.supervise(f'{address} ({context.get_node_id()})', address, moved)
            return self._code

    def supervise(self, node: str, host: str, moved: bool) -> int:
        """Runs the supervisor, again when it was killed,
        until it has ended by itself or was stopped.

        Args:
          node: the node's name, for the log.
          host: the node's address, at which jobs on other nodes reach this one.
          moved: whether the job ran elsewhere, or in another actor, before.
        """
        code = -signal.SIGKILL
        for kills in range(_MAX_KILLS + 1):
            if moved or kills:
                # What only lost Ray, or its supervisor, is still being stopped.
                self._stopped.wait(self._job['stop_timeout_secs'])
            code = self._supervise_once(node, host)
            if code >= 0 or self._stopped.is_set():
                break
        return code

    def _supervise_once(self, node: str, host: str) -> int:
        machine = {name: value for name, value in os.environ.items() if not name.startswith('RAY_')}
        environment = {**machine, **self._environment, 'TFLEARN_HOST': host}
        environment |= {name: machine[name] for name in _OF_MACHINE if name in machine} | self._job['environment']
        path = pathlib.Path(self._job['log'])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open('ab', buffering=0) as log, self._reaper() as reaper:
            with self._lock:
                if self._stopped.is_set():
                    return _STOPPED
                log.write(f'===== {time.strftime("%F %T")} on node {node}\n'.encode())
                self._process = subprocess.Popen(
                    ['/bin/sh', '-c', _WAIT_FOR_LINE, 'sh', *self._job['command']],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            reaper.write(f'+{self._process.pid}\n'.encode())
            with contextlib.suppress(BrokenPipeError), self._process.stdin as line:  # type: ignore[union-attr]
                # It begins when the reaper knows it: the actor may be killed at any time.
                line.write(b'\n')
            code = self._process.wait()
            with contextlib.suppress(BrokenPipeError):
                reaper.write(f'-{self._process.pid}\n'.encode())
        return code

    @contextlib.contextmanager
    def _reaper(self) -> Any:
        """Starts the program that stops the supervisor when this process ends before it;
        gives its input.
        """
        reaper = subprocess.Popen(
            [sys.executable, '-I', '-S', self._job['reaper'], str(self._job['stop_timeout_secs'])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        try:
            yield reaper.stdin
        finally:
            assert reaper.stdin
            reaper.stdin.close()
            reaper.wait()

    def stop(self) -> None:
        """Asks the job to end; the supervisor kills it when it does not in time."""
        with self._lock:
            self._stopped.set()
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()


class View:
    """The lines of `tflearn watch`, which a process of the launcher's Python reads from the run directory."""

    def __init__(self, plan: Mapping[str, Any]):
        """Starts nothing yet."""
        self._command, self._status = plan['watch'], pathlib.Path(plan['status'])
        self._process: subprocess.Popen | None = None
        self._lines: IO[bytes] | None = None

    def poll(self) -> None:
        """Starts the process as soon as a job has reported."""
        if self._process is None and any(self._status.glob('[!.]*.json')):
            environment = {**os.environ, 'TERM': 'dumb'}  # lines, between those of the driver
            # Ctrl-C is for the driver. When that is killed, the process ends at its next line,
            # which nothing takes.
            self._process = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
            self._lines = self._process.stdout
            assert self._lines
            os.set_blocking(self._lines.fileno(), False)
        self._copy()

    def close(self) -> None:
        """Ends the process, which may show how the run has ended."""
        if self._process is None:
            return
        try:
            self._process.wait(_VIEW_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._copy()
        if self._lines:
            self._lines.close()

    def _copy(self) -> None:
        while self._lines and (text := self._lines.read()):
            with contextlib.suppress(OSError):  # Nobody reads the output any more.
                sys.stdout.write(text.decode(errors='replace'))
                sys.stdout.flush()


class _Run:
    """The actors of a run."""

    def __init__(self, plan: Mapping[str, Any]):
        import ray

        self._ray, self._plan = ray, plan
        self._view = View(plan)
        self._failure = pathlib.Path(plan['failure'])
        self._signals: list[int] = []
        self._codes: dict[str, int] = {}
        self._actors: dict[str, Any] = {}
        self._pending: dict[Any, Mapping[str, Any]] = {}
        self._nodes: dict[str, str] = {}

    def run(self) -> int:
        """Returns the exit code of the launcher."""
        self._ray.init(self._plan['address'], namespace=_NAMESPACE, log_to_driver=False, logging_level='warning')
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, frame: self._signals.append(received))
        group = self._reserve()
        if group is not None:
            self._start(group)
            try:
                self._watch()
            finally:
                self._view.close()
        return self._exit_code()

    def _reserve(self) -> Any:
        """Waits until all jobs have their resources. Returns the placement group;
        None if a signal came first.
        """
        bundles = [dict(job['resources']) for job in self._plan['jobs']]
        group = self._ray.util.placement_group(bundles, strategy=self._plan['strategy'])
        ready, next_line_secs = group.ready(), time.monotonic()
        while not self._ray.wait([ready], timeout=_POLL_SECS)[0]:
            if self._signals:
                return None
            if time.monotonic() >= next_line_secs:
                next_line_secs = time.monotonic() + _WAITING_LINE_SECS
                _say(f'waiting for {_total(bundles)}; free in the cluster: {_shown(self._ray.available_resources())}')
        return group

    def _start(self, group: Any) -> None:
        strategies = self._ray.util.scheduling_strategies
        actor = self._ray.remote(max_restarts=_MAX_MOVES, max_task_retries=-1, max_concurrency=_MAX_CALLS)(JobActor)
        environment = {name: value for name, value in os.environ.items() if not name.startswith('RAY_')}
        for index, job in enumerate(self._plan['jobs']):
            rest = dict(job['resources'])
            own = {'num_cpus': rest.pop('CPU', 0), 'num_gpus': rest.pop('GPU', 0), 'memory': rest.pop('memory', None)}
            place = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            options = {'name': f'{self._plan["root"]}:{job["name"]}', 'resources': rest, 'scheduling_strategy': place}
            made = actor.options(**own, **options).remote(job, environment)
            self._actors[job['name']] = made
            self._pending[made.run.remote()] = job
        _say(f'started {", ".join(self._actors)}; their logs are in {self._plan["logs"]}')

    def _watch(self) -> None:
        """Watches the jobs until all have ended; stops them, stage by stage, after a signal."""
        while self._pending and not self._signals:
            self._collect()
            self._report_nodes()
            self._view.poll()
        for stage in sorted({job['stop_stage'] for job in self._pending.values()}):
            members = [job for job in self._pending.values() if job['stop_stage'] == stage]
            self._stop(members)

    def _stop(self, members: list[Mapping[str, Any]]) -> None:
        names = [job['name'] for job in members]
        _say(f'stopping {", ".join(names)}')
        for name in names:
            self._actors[name].stop.remote()
        deadline = time.monotonic() + max(job['stop_timeout_secs'] for job in members) + _STOP_MARGIN_SECS
        while left := [job['name'] for job in self._pending.values() if job['name'] in names]:
            if time.monotonic() > deadline or len(self._signals) > 1:
                _say(f'{", ".join(left)} did not stop: killed')
                for name in left:
                    self._ray.kill(self._actors[name])
                return
            self._collect()

    def _collect(self) -> None:
        """Takes the exit codes of the jobs that have ended meanwhile."""
        ended, _ = self._ray.wait(list(self._pending), timeout=_POLL_SECS)
        for reference in ended:
            job = self._pending.pop(reference)
            try:
                code = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                code = 1
                self._fail(job, f'{job["name"]} was lost for good: {" ".join(str(error).split())}')
            self._codes[job['name']] = code
            if code and not self._signals:
                _say(f'{job["name"]} ended with exit code {code}; see {job["log"]}')

    def _fail(self, job: Mapping[str, Any], message: str) -> None:
        """Ends the run, unless it can go on without the job."""
        _say(message)
        if job['can_be_missed'] or self._failure.exists():
            return
        temporary = self._failure.with_suffix('.ray')
        temporary.write_text(json.dumps({'job': job['name'], 'message': message}), encoding='utf-8')
        temporary.replace(self._failure)

    def _report_nodes(self) -> None:
        alive = {node['NodeID']: node['NodeManagerAddress'] for node in self._ray.nodes() if node['Alive']}
        for lost in self._nodes.keys() - alive.keys():
            _say(f'node {self._nodes[lost]} ({lost}) was lost; its jobs are started again on another one')
        self._nodes = alive

    def _exit_code(self) -> int:
        if pathlib.Path(self._plan['done']).exists():
            return 0
        if self._signals:
            return 128 + self._signals[0]
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            _say(f'the run has failed: {json.loads(self._failure.read_text(encoding="utf-8"))["message"]}')
        return 2 if 2 in self._codes.values() else 1


def _total(bundles: list[dict[str, float]]) -> str:
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return _shown({name: sum(bundle.get(name, 0) for bundle in bundles) for name in names})


def _shown(resources: Mapping[str, float]) -> str:
    """Returns resources without the names of nodes and of placement groups."""
    own = {name: value for name, value in resources.items() if 'node:' not in name and '_group_' not in name}
    return ', '.join(f'{name} {value:g}' for name, value in sorted(own.items())) or 'nothing'


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # Nobody reads the output any more.
        sys.stdout.write(f'{time.strftime("%F %T")} {text}\n')
        sys.stdout.flush()


def main() -> None:
    """Runs the plan."""
    plan = json.load(sys.stdin)
    try:
        code = _Run(plan).run()
    except (ConnectionError, ValueError) as error:
        # No cluster at that address, another version of Ray there, or the run's actors exist
        # already.
        sys.stderr.write(f'tflearn-launch: error: got an error from Ray: {" ".join(str(error).split())}\n')
        code = 2
    sys.exit(code)


if __name__ == '__main__':
    main()
