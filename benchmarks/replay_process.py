"""A process with replay servers and writers, controlled by lines on its standard input.

Each server holds the same case's steps for another reader. `write NAME` lets that server's writer insert steps at the
given rate, `write nothing` stops all; the end of the input ends the process.
"""

import argparse
import json
import sys
import threading
import time

import reverb
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec

from benchmarks import learner_cases
from tflearn.core.train_step import create_train_step
from tflearn.replay.reverb import library
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter

NUM_ENVIRONMENTS = 64  # at once, as a native vector environment steps them: the writer takes little of two cores
PEER_TABLE = 'uniform_table'


class OurSide:
    """A server with our tables, and a writer."""

    def __init__(self, case: learner_cases.Case, experience: dict, port: int):
        agent = case.make_agent(case.specs, create_train_step(), case.experience())
        storage = Storage(case.experience(**experience), agent.collect_data_spec)
        self.mirrored = storage.mirrored
        self.server = reverb.Server([*map(library.make_table, storage.make_tables())], port)
        self._writer = ReplayWriter(f'localhost:{port}', storage, NUM_ENVIRONMENTS, threading.Event())
        self._steps = learner_cases.steps(case, NUM_ENVIRONMENTS)

    def write(self) -> None:
        """Writes one step of each environment."""
        self._writer(next(self._steps), 0)


class PeerSide:
    """A server with TF-Agents' table, and its observers."""

    def __init__(self, case: learner_cases.Case, max_size: int, prioritized: bool, port: int):
        agent = case.make_agent(case.specs, create_train_step(), case.experience())
        sampler = reverb.selectors.Prioritized(0.6) if prioritized else reverb.selectors.Uniform()
        table = reverb.Table(
            PEER_TABLE,
            max_size=max_size,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=tensor_spec.add_outer_dim(agent.collect_data_spec),
        )
        self.server = reverb.Server([table], port)
        client = reverb.Client(f'localhost:{port}')
        self._observers = [
            reverb_utils.ReverbAddTrajectoryObserver(client, PEER_TABLE, sequence_length=2, stride_length=1)
            for _ in range(NUM_ENVIRONMENTS)
        ]
        self._steps = learner_cases.steps(case, NUM_ENVIRONMENTS)

    def write(self) -> None:
        """Writes one step of each environment."""
        step = next(self._steps)
        for i, observer in enumerate(self._observers):
            observer(type(step)(*(() if isinstance(column, tuple) else column[i] for column in step)))


def main() -> None:
    """Starts the servers, fills them, then obeys."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--case', choices=learner_cases.CASES, required=True)
    parser.add_argument('--sides', required=True, help='JSON: {name: {"port": int, "peer": bool, ...}}')
    parser.add_argument('--num_steps', type=int, required=True, help='stored before the first line is obeyed')
    parser.add_argument('--steps_per_sec', type=float, default=3000.0)
    options = parser.parse_args()
    case = learner_cases.CASES[options.case]
    sides: dict[str, OurSide | PeerSide] = {}
    for name, side in json.loads(options.sides).items():
        if side.get('peer'):
            sides[name] = PeerSide(case, options.num_steps, side.get('prioritized', False), side['port'])
        else:
            sides[name] = OurSide(case, side['experience'], side['port'])
    print('serving', flush=True)
    # A mirrored one last: it is only filled as fast as its learner reads.
    for name, side in sorted(sides.items(), key=lambda item: getattr(item[1], 'mirrored', False)):
        for _ in range(options.num_steps // NUM_ENVIRONMENTS + learner_cases.EPISODE_STEPS):
            side.write()
        print(f'filled {name}', flush=True)
    _obey(sides, options.steps_per_sec)


def _obey(sides: dict[str, OurSide | PeerSide], steps_per_sec: float) -> None:
    chosen = ['nothing']
    done = threading.Event()

    def write() -> None:
        period, due = NUM_ENVIRONMENTS / steps_per_sec, time.monotonic()
        while not done.is_set():
            if chosen[0] == 'nothing':
                done.wait(0.01)
                due = time.monotonic()
                continue
            sides[chosen[0]].write()
            due += period
            done.wait(max(0.0, due - time.monotonic()))

    threading.Thread(target=write, daemon=True).start()
    for line in sys.stdin:
        chosen[0] = line.split()[1]
        print('ok', flush=True)
    done.set()


if __name__ == '__main__':
    main()
