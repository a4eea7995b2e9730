"""A simulation of experience on its way: collectors -> chunks -> replay servers -> the learner's mirror, with SimPy.

What takes processor time, time on a wire or a place in a queue is an event; what the programs compute is not. The
structure is that of the code (`ReplayWriter`, `TableReader`, `ReplayMirror`); its few parameters are `Costs`.
"""

import collections
import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

NUM_TABLES = 2  # that a chunk is inserted into: the replay and the stream
STREAM_CHUNKS = 256  # that wait in a server's stream
MAX_STREAMS = 8  # of a mirror
MAX_PENDING_STEPS = 256  # of a writer
INGEST_SHARE = 0.25  # of the reader's processor time; the streams take the rest
INGEST_POLL_SECS, WAITING_POLL_SECS, GRANT_SECS = 0.03, 0.002, 0.01
_ELAPSED_SECS = 1e-5  # from the time at which a message is to be forwarded to the start of epoll
Deliver = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Costs:
    """The parameters [s of processor time, unless they say otherwise].

    Attributes:
      vector_step: of a collector, for one step of all its environments: packing and gathering.
      write_chunk: of a collector, to send a chunk to both tables.
      serve_chunk: of a server, to insert a chunk and to send it to the reader.
      read_chunk: of the reader, for a chunk.
      read_step: of the reader, for a step in a chunk.
      message: of a proxy, for a message that it forwards.
      wake_up: of any process that had nothing to do, when it has again.
      hand_over: how long a process that was idle waits before a busy core takes it up. [s, no processor time]
      timer: of a proxy, the resolution of its timers: epoll rounds up to 1 ms, other messages wake it earlier. [s]
      steps_per_row: environment steps in a row of a chunk; the others are the ends of episodes. [1]
    """

    vector_step: float = 45e-6
    write_chunk: float = 125e-6
    serve_chunk: float = 55e-6
    read_chunk: float = 150e-6
    read_step: float = 0.6e-6
    message: float = 7e-6
    wake_up: float = 60e-6
    hand_over: float = 150e-6
    timer: float = 0.15e-3
    steps_per_row: float = 0.955


@dataclasses.dataclass(frozen=True)
class Setting:
    """A system: how many, how far apart, and what they try to do.

    Attributes:
      hold_secs: how long a proxy holds a message back; None is no proxy.
      pace: rows per second of each collector; None is as fast as possible.
      train_rate: train steps per second, with `batch_size` and `samples_per_insert`; None is without a limit.
    """

    collectors: int
    shards: int
    hold_secs: float | None = None
    chunk_steps: int = 16
    pace: float | None = None
    train_rate: float | None = None
    environments: int = 16
    batch_size: int = 64
    samples_per_insert: float = 8.0


class Core:
    """A processor core: jobs one after the other, in the order in which they come.

    Attributes:
      free_at: when it has done all jobs that it was given.
    """

    def __init__(self, env: simpy.Environment):
        self.env = env
        self.free_at = 0.0

    def work(self, secs: float) -> simpy.Event:
        """Returns the event of the job's end."""
        self.free_at = max(self.env.now, self.free_at) + secs
        return self.env.timeout(self.free_at - self.env.now)


class Process:
    """A program on a core; it takes longer for a job if it had nothing to do before.

    Attributes:
      busy_secs: the processor time that it has taken.
    """

    def __init__(self, core: Core, costs: Costs):
        self._core, self._costs = core, costs
        self._awake_until = -1.0
        self.busy_secs = 0.0

    def work(self, secs: float) -> simpy.Event:
        """Returns the event of the job's end."""
        core, env = self._core, self._core.env
        if self._awake_until >= env.now:
            return self._start(secs)
        secs += self._costs.wake_up
        if core.free_at <= env.now:
            return self._start(secs)
        done = env.event()
        waited = env.timeout(self._costs.hand_over)
        waited.callbacks.append(lambda _: self._start(secs).callbacks.append(lambda _: done.succeed()))
        self._awake_until = env.now + self._costs.hand_over
        return done

    def _start(self, secs: float) -> simpy.Event:
        self.busy_secs += secs
        done = self._core.work(secs)
        self._awake_until = self._core.free_at
        return done

    def then(self, secs: float, deliver: Deliver) -> None:
        """Calls `deliver` at the job's end."""
        self.work(secs).callbacks.append(lambda _: deliver())


class Proxy:
    """A process that forwards messages after a fixed time.

    It looks at its timers when a message comes, or when it has waited for a multiple of their resolution.
    """

    def __init__(self, env: simpy.Environment, process: Process, hold_secs: float, costs: Costs):
        self._env, self._process, self._hold_secs, self._costs = env, process, hold_secs, costs
        self._held: list[tuple[float, int, Deliver]] = []
        self._arrived: list[Deliver] = []
        self._count = itertools.count()
        self._wakes: simpy.Event | None = None
        env.process(self._run())

    def send(self, deliver: Deliver) -> None:
        """Takes a message."""
        self._arrived.append(deliver)
        if self._wakes is not None and not self._wakes.triggered:
            self._wakes.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            arrived, self._arrived = self._arrived, []
            for deliver in arrived:
                yield self._process.work(self._costs.message / 2)
                heapq.heappush(self._held, (self._env.now + self._hold_secs, next(self._count), deliver))
            while self._held and self._held[0][0] <= self._env.now:
                yield self._process.work(self._costs.message / 2)
                heapq.heappop(self._held)[2]()
            if self._arrived:
                continue
            self._wakes = self._env.event()
            if self._held:
                early = self._held[0][0] - self._env.now - _ELAPSED_SECS
                timer = self._env.timeout(max(1, math.ceil(early / self._costs.timer)) * self._costs.timer)
                yield self._wakes | timer
            else:
                yield self._wakes


class Server:
    """A replay server: a stream of limited length, whose writers wait when it is full."""

    def __init__(self, process: Process, costs: Costs):
        self._process, self._costs = process, costs
        self._stream = 0
        self._blocked: collections.deque[Deliver] = collections.deque()
        self._waiting: collections.deque[Deliver] = collections.deque()
        self.inserted = 0

    def insert(self, confirm: Deliver) -> None:
        """Takes a chunk; confirms it when it is in the tables."""
        self._process.then(self._costs.serve_chunk / 2, functools.partial(self._insert, confirm))

    def _insert(self, confirm: Deliver) -> None:
        if self._stream >= STREAM_CHUNKS:
            self._blocked.append(confirm)
            return
        self._stream += 1
        self.inserted += 1
        confirm()
        self._give()

    def acknowledge(self, deliver: Deliver) -> None:
        """Answers at once."""
        self._process.then(0.0, deliver)

    def request(self, deliver: Deliver) -> None:
        """Sends a chunk, as soon as there is one."""
        self._waiting.append(deliver)
        self._give()

    def _give(self) -> None:
        while self._stream and self._waiting:
            self._stream -= 1
            self._process.then(self._costs.serve_chunk / 2, self._waiting.popleft())
            if self._blocked:
                self._insert(self._blocked.popleft())


class Collector:
    """Writes chunks; waits while more than a few of them are not confirmed."""

    def __init__(self, system: Any, process: Process, server: Server, begin: float):
        """Begins to write; `begin` is the part of a chunk's period after which it makes its first step."""
        self._system, self._process, self._server, self._begin = system, process, server, begin
        self._unconfirmed = 0
        self._confirmed: simpy.Event | None = None
        system.env.process(self._run())

    def _run(self) -> Generator[simpy.Event, Any, None]:
        system, setting, costs = self._system, self._system.setting, self._system.costs
        window = max(setting.environments, MAX_PENDING_STEPS // setting.chunk_steps) // NUM_TABLES
        period = setting.environments / setting.pace if setting.pace else 0.0
        begin = self._begin * period * setting.chunk_steps
        for i in itertools.count(1):
            if (early := begin + i * period - system.env.now) > 0:
                yield system.env.timeout(early)
            yield self._process.work(costs.vector_step)
            if i % setting.chunk_steps:
                continue
            for _ in range(setting.environments):
                yield self._process.work(costs.write_chunk)
                self._unconfirmed += 1
                system.send(functools.partial(self._server.insert, self._confirm))
            while self._unconfirmed > window:
                self._confirmed = system.env.event()
                yield self._confirmed

    def _confirm(self) -> None:
        self._system.send(self._receive)

    def _receive(self) -> None:
        self._process.then(0.0, self._is_confirmed)

    def _is_confirmed(self) -> None:
        self._unconfirmed -= 1
        if self._confirmed is not None and not self._confirmed.triggered:
            self._confirmed.succeed()


class Reader:
    """The learner's mirror: streams with one chunk in flight each, a queue for each server, and the samples per insert.

    A stream takes two round trips for a chunk: one for the chunk, one to ask for the next.
    """

    def __init__(self, system: Any, process: Process, servers: Sequence[Server]):
        self._system, self._process = system, process
        setting = system.setting
        self._error_buffer = max(4.0 * setting.batch_size, 2 * setting.samples_per_insert * setting.chunk_steps)
        chunks = STREAM_CHUNKS
        if setting.train_rate:
            ahead = self._error_buffer / setting.samples_per_insert / setting.chunk_steps
            chunks = min(chunks, max(16, math.ceil(ahead)))
        ahead = max(4, chunks // len(servers))
        streams = min(math.ceil(MAX_STREAMS / len(servers)), ahead // 2)
        self._queues = [simpy.Container(system.env, ahead + 2 - 2 * streams) for _ in servers]
        self._samples, self._visible = 0.0, 0.0
        self._waits = False
        self.read = 0
        for server, queue in zip(servers, self._queues, strict=True):
            for _ in range(streams):
                system.env.process(self._stream(server, queue))
        system.env.process(self._ingest())
        if setting.train_rate:
            system.env.process(self._train(setting.train_rate))

    def _stream(self, server: Server, queue: simpy.Container) -> Generator[simpy.Event, Any, None]:
        system, costs = self._system, self._system.costs
        secs = costs.read_chunk + costs.read_step * system.setting.chunk_steps
        while True:
            yield system.round_trip(server.acknowledge)
            yield self._process.work(0.0)
            yield system.round_trip(server.request, has_chunk=True)
            yield self._process.work((1 - INGEST_SHARE) * secs)
            yield queue.put(1)

    def _ingest(self) -> Generator[simpy.Event, Any, None]:
        costs = self._system.costs
        secs = costs.read_chunk + costs.read_step * self._system.setting.chunk_steps
        while True:
            taken = 0
            yield self._process.work(0.0)
            for queue in self._queues:
                count = min(queue.level, self._wanted(), 16)
                if count:
                    yield queue.get(count)
                    yield self._process.work(INGEST_SHARE * count * secs)
                    self.read += count
                    self._waits = False
                    taken += count
            if not taken:
                yield self._system.env.timeout(WAITING_POLL_SECS if self._waits else INGEST_POLL_SECS)

    def _wanted(self) -> int:
        setting = self._system.setting
        if not setting.train_rate:
            return 16
        sequences = setting.chunk_steps * self._system.costs.steps_per_row
        in_balance = (self._samples + self._error_buffer) / setting.samples_per_insert
        return max(0, math.ceil((in_balance - self.read * sequences) / setting.chunk_steps))

    def _train(self, rate: float) -> Generator[simpy.Event, Any, None]:
        system, setting, granted = self._system, self._system.setting, 0
        while True:
            yield system.env.timeout(GRANT_SECS)
            due = int(system.env.now * rate) - granted
            while due > 0:
                inserts = self.read * setting.chunk_steps * system.costs.steps_per_row
                ahead = self._samples - setting.samples_per_insert * inserts
                steps = max(0, min(due, int((self._error_buffer - ahead) // setting.batch_size)))
                if steps:
                    self._samples += steps * setting.batch_size
                    granted, due = granted + steps, due - steps
                else:
                    self._waits = True
                    yield system.env.timeout(WAITING_POLL_SECS)


class System:
    """The measured system: servers and proxies on one core, collectors and reader on another."""

    def __init__(self, setting: Setting, costs: Costs):
        self.setting, self.costs, self.env = setting, costs, simpy.Environment()
        self.proxied = bool(setting.hold_secs)
        server_core, client_core = Core(self.env), Core(self.env)
        make = functools.partial(Process, costs=costs)
        self.processes = {
            'server': [make(server_core) for _ in range(setting.shards)],
            'collector': [make(client_core) for _ in range(setting.collectors)],
            'reader': [make(client_core)],
            'proxy': [make(server_core)] if self.proxied else [],
        }
        if setting.hold_secs:
            self.send = Proxy(self.env, self.processes['proxy'][0], setting.hold_secs, costs).send
        self.servers = [Server(process, costs) for process in self.processes['server']]
        for i, process in enumerate(self.processes['collector']):
            Collector(self, process, self.servers[i % setting.shards], begin=i * 0.618034 % 1.0)
        self.reader = Reader(self, self.processes['reader'][0], self.servers)

    def send(self, deliver: Deliver) -> None:
        """Sends a message, through the proxy if there is one."""
        deliver()

    def round_trip(self, request: Callable[[Deliver], object], has_chunk: bool = False) -> simpy.Event:
        """Sends a request; returns the event of its answer, which has a chunk or nothing."""
        del has_chunk  # on one machine bytes take no time
        done = self.env.event()
        self.send(lambda: request(lambda: self.send(done.succeed)))
        return done


def simulate(setting: Setting, costs: Costs, settle_secs: float = 1.2, secs: float = 1.0) -> dict[str, Any]:
    """Returns the environment steps and chunks per second, and the share of a core that each role takes."""
    system = System(setting, costs)
    system.env.run(settle_secs)
    inserted = sum(server.inserted for server in system.servers)
    busy = {role: sum(each.busy_secs for each in own) for role, own in system.processes.items()}
    system.env.run(settle_secs + secs)
    chunks = (sum(server.inserted for server in system.servers) - inserted) / secs
    cpu = {role: (sum(each.busy_secs for each in own) - busy[role]) / secs for role, own in system.processes.items()}
    return {'chunks': chunks, 'steps': chunks * setting.chunk_steps * costs.steps_per_row, 'cpu': cpu}
