"""What breaks first with many machines, calculated: a closed formula, and the simulator that was fitted to two cores.

    python -m benchmarks.scale.plan

Each collector has a core, each replay server and each reader (a learner's host, or a worker of the feed) a machine of
its own, of which replay server and reader use one core: more was not measured. Nothing here was run on such machines.
"""

import argparse
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Sequence

import simpy

from benchmarks.scale import fit as scale_fit
from benchmarks.scale import model as scale_model
from benchmarks.scale.model import Core, Costs, Deliver, Process, Server

MOST = 0.7  # of a core or a wire, in a plan: beyond, queues grow
_SETTLE_SECS = 0.7
GIGABIT = 1e9 / 8  # bytes per second
CORES_PER_MACHINE = 32  # of collectors


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run on many machines.

    Attributes:
      steps: environment steps per second of all collectors.
      readers: processes that each read their share of all servers.
      hosts: of the learner. If there are more readers, all are workers of the feed.
      gigabits: of the wire of a server and of a reader, in each direction [Gb/s].
      round_trip_secs: between two machines.
    """

    steps: float
    shards: int
    readers: int
    chunk_steps: int = 16
    collectors: int = 1_000
    environments: int = 16
    hosts: int = 4
    gigabits: float = 10.0
    round_trip_secs: float = 2e-4


def wire_bytes() -> tuple[float, float]:
    """Returns the bytes of a chunk on one wire: for itself, and for each of its steps; measured with CartPole's rows.

    Over the loopback device each chunk goes twice, to the server and to the reader.
    """
    own = {16: [], 64: []}
    for point, value in scale_fit.load().items():
        size = scale_fit.setting(point).chunk_steps
        if not point.delay_ms and size in own:
            own[size].append(value.bytes_per_chunk / 2)
    small, large = (sorted(each)[len(each) // 2] for each in own.values())
    per_step = (large - small) / (64 - 16)
    return small - 16 * per_step, per_step


def shares(plan: Plan, costs: Costs, wire: tuple[float, float]) -> dict[str, float]:
    """Returns what each part is asked for, as a share of what it can do; 1 is saturated."""
    chunks = plan.steps / plan.chunk_steps / costs.steps_per_row
    num_bytes = wire[0] + wire[1] * plan.chunk_steps
    per_row = costs.vector_step / plan.environments + costs.write_chunk / plan.chunk_steps
    per_served = costs.serve_chunk + costs.wake_up  # what it took at most; a saturated server was not measured
    per_read = costs.read_chunk + costs.read_step * plan.chunk_steps
    streams = plan.shards * math.ceil(scale_model.MAX_STREAMS / plan.shards)
    return {
        "a collector's core": chunks * plan.chunk_steps * per_row / plan.collectors,
        "a replay server's core": chunks * per_served / plan.shards,
        "a replay server's wire": chunks * num_bytes / plan.shards / (plan.gigabits * GIGABIT),
        "a reader's core": chunks * per_read / plan.readers,
        "a reader's wire": chunks * num_bytes / plan.readers / (plan.gigabits * GIGABIT),
        "a reader's streams": chunks * (2 * plan.round_trip_secs + per_served) / plan.readers / streams,
    }


def smallest(plan: Plan, costs: Costs, wire: tuple[float, float]) -> Plan:
    """Returns the plan with as many servers and readers as it needs to stay below `MOST` everywhere."""
    single = shares(dataclasses.replace(plan, shards=1, readers=1), costs, wire)
    shards = math.ceil(max(single["a replay server's core"], single["a replay server's wire"]) / MOST)
    readers = math.ceil(max(single["a reader's core"], single["a reader's wire"]) / MOST)
    plan = dataclasses.replace(plan, shards=shards, readers=max(readers, plan.readers))
    streams = shares(plan, costs, wire)["a reader's streams"]
    return dataclasses.replace(plan, readers=math.ceil(plan.readers * max(1.0, streams / MOST)))


class _FarServer(Server):
    """A replay server at the end of a wire."""

    def __init__(self, env: simpy.Environment, costs: Costs, chunk_secs: float):
        self.process = Process(Core(env), costs)
        super().__init__(self.process, costs)
        self._in, self._out, self._chunk_secs = Core(env), Core(env), chunk_secs

    def insert(self, confirm: Deliver) -> None:
        insert = functools.partial(super().insert, confirm)
        self._in.work(self._chunk_secs).callbacks.append(lambda _: insert())

    def request(self, deliver: Deliver) -> None:
        super().request(lambda: self._out.work(self._chunk_secs).callbacks.append(lambda _: deliver()))


class _Host:
    """A machine as collectors and readers see it: what they send takes half a round trip, and its wire fills."""

    def __init__(self, env: simpy.Environment, plan: Plan, costs: Costs, chunk_secs: float):
        rows = plan.steps / plan.collectors / costs.steps_per_row
        self.setting = scale_model.Setting(
            plan.collectors, plan.shards, None, plan.chunk_steps, pace=rows, environments=plan.environments
        )
        self.env, self.costs = env, costs
        self._latency, self._chunk_secs, self._in = plan.round_trip_secs / 2, chunk_secs, Core(env)

    def send(self, deliver: Deliver) -> None:
        self.env.timeout(self._latency).callbacks.append(lambda _: deliver())

    def round_trip(self, request: Callable[[Deliver], object], has_chunk: bool = False) -> simpy.Event:
        done = self.env.event()

        def receive() -> None:
            self._in.work(self._chunk_secs if has_chunk else 0.0).callbacks.append(lambda _: done.succeed())

        self.send(lambda: request(lambda: self.send(receive)))
        return done


def simulate(plan: Plan, costs: Costs, wire: tuple[float, float]) -> dict[str, float]:
    """Returns the environment steps per second that are inserted and read, and the shares of the busiest cores."""
    env = simpy.Environment()
    chunk_secs = (wire[0] + wire[1] * plan.chunk_steps) / (plan.gigabits * GIGABIT)
    servers = [_FarServer(env, costs, chunk_secs) for _ in range(plan.shards)]
    make = functools.partial(_Host, env, plan, costs, chunk_secs)
    processes = [Process(Core(env), costs) for _ in range(plan.readers)]
    readers = [scale_model.Reader(make(), process, servers) for process in processes]
    machine = make()
    for i in range(plan.collectors):
        process = Process(Core(env), costs)
        begin = i * 0.618034 % 1.0  # they do not all fill their chunks at the same time
        scale_model.Collector(machine, process, servers[i % plan.shards], begin)
    period = plan.environments * plan.chunk_steps * plan.collectors * costs.steps_per_row / plan.steps
    per_chunk = plan.chunk_steps * costs.steps_per_row
    env.run(2 * period + _SETTLE_SECS)
    before = [sum(each.inserted for each in servers), sum(each.read for each in readers)]
    busy = [process.busy_secs for process in processes], [server.process.busy_secs for server in servers]
    secs = max(period, 0.5)
    env.run(env.now + secs)
    after = [sum(each.inserted for each in servers), sum(each.read for each in readers)]
    read_cores = (b.busy_secs - a for a, b in zip(busy[0], processes, strict=True))
    served_cores = (b.process.busy_secs - a for a, b in zip(busy[1], servers, strict=True))
    inserted, read = ((b - a) / secs * per_chunk for a, b in zip(before, after, strict=True))
    return {
        'inserted': inserted,
        'read': read,
        'server': max(served_cores) / secs,
        'reader': max(read_cores) / secs,
    }


def weights(megabytes: float, collectors: int, relays: int, gigabits: float) -> float:
    """Returns the time until all have a publication: the root sends it to the relays, each to its collectors [s]."""
    secs = megabytes * 1e6 / (gigabits * GIGABIT)
    return secs * (relays + math.ceil(collectors / relays)) if relays else secs * collectors


def plan_table(plans: Sequence[Plan], costs: Costs, wire: tuple[float, float]) -> str:
    """Returns what saturates first in each plan, by the formula and by the simulator, as a Markdown table."""
    lines = [
        '| steps/s | steps of a chunk | replay servers | readers | busiest by the formula | its share | next | '
        'its share | steps/s read, simulated | replay core, simulated | reader core, simulated | other machines |',
        '|---' * 12 + '|',
    ]
    for plan in plans:
        (first, most), (second, less), *_ = sorted(shares(plan, costs, wire).items(), key=lambda each: -each[1])
        found = simulate(plan, costs, wire)
        lines.append(
            f'| 10^{math.log10(plan.steps):.0f} | {plan.chunk_steps} | {plan.shards} | {plan.readers} | {first} | '
            f'{most:.2f} | {second} | {less:.2f} | {found["read"]:,.0f} | {found["server"]:.2f} | '
            f'{found["reader"]:.2f} | {machines(plan)} |'
        )
    return '\n'.join(lines)


def machines(plan: Plan) -> str:
    """Returns the machines beside the learner's: of collectors, of replay servers, and of the feed."""
    collectors = math.ceil(plan.collectors / CORES_PER_MACHINE)
    return f'{collectors} + {plan.shards} + {plan.readers if plan.readers > plan.hosts else 0}'


def pictures_table(costs: Costs) -> str:
    """Returns the servers and readers for 84x84x4 bytes in each step, by the formula alone, as a Markdown table."""
    wire = 500.0, 84.0 * 84 * 4 + 33
    lines = ['| steps/s | Gb/s of a wire | GB/s in all | replay servers | readers |', '|---' * 5 + '|']
    for steps in (1e5, 1e6, 1e7):
        for gigabits in (10.0, 100.0):
            plan = smallest(Plan(steps, 1, 1, gigabits=gigabits), costs, wire)
            gigabytes = steps * (wire[1] + wire[0] / 16) / 1e9
            lines.append(
                f'| 10^{math.log10(steps):.0f} | {gigabits:g} | {gigabytes:,.1f} | {plan.shards} | {plan.readers} |'
            )
    return '\n'.join(lines)


def weights_table() -> str:
    """Returns how long a publication takes to 1,000 collectors, as a Markdown table."""
    lines = ['| weights, MB | relays | sent by the root, MB | all have them after, s |', '|---' * 4 + '|']
    for megabytes in (1, 50, 500):
        for relays in (0, 32):
            secs = weights(megabytes, 1_000, relays, 10.0)
            lines.append(f'| {megabytes} | {relays} | {megabytes * (relays or 1_000):,} | {secs:.2f} |')
    return '\n'.join(lines)


def main() -> int:
    """Prints the tables of docs/scale.md."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    costs, wire = Costs(**json.loads(scale_fit.COSTS.read_text())), wire_bytes()
    print(f'bytes of a chunk on a wire: {wire[0]:.0f} + {wire[1]:.1f} for each step\n')
    plans = [Plan(1e6, 1, 1), Plan(1e6, 1, 4), Plan(1e6, 8, 4), Plan(1e7, 16, 16)]
    for steps, hosts in ((1e6, 4), (1e6, 16), (1e7, 16)):  # 32 GPUs on 4 hosts, 64 chips on 16
        plans += [smallest(Plan(steps, 1, hosts, chunk_steps=size, hosts=hosts), costs, wire) for size in (16, 64)]
    print(plan_table(plans, costs, wire), pictures_table(costs), weights_table(), sep='\n\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
