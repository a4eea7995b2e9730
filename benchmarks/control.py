"""The reports of many collectors: fake collectors in a few processes, a coordinator, a learner that reads.

    python benchmarks/control.py --collectors=1000 --processes=4 --secs=30

Each fake collector sends one report a second with one episode in it. Prints a line of JSON; `latest_sender_secs` far
above 0 means that the machine is too slow for so many senders. `server_cpu_secs` and `learner_cpu_secs` are the
processor time of the coordinator and of the reader.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tflearn.coordinator.client import Coordinator, Role
from tflearn.core.access import Access
from tflearn.launch.local import free_port

_EPISODE = {'return': 123.0, 'length': 123.0}
_START_SECS = 30.0  # until all processes have loaded their libraries


def serve(address: str) -> None:
    """Runs a coordinator."""
    from tflearn.coordinator import server

    server.serve(server.options(address, None), lambda status: None, threading.Event())


def joined(address: str, name: str, role: str = 'collect') -> Coordinator:
    """Returns a job that the coordinator has taken in."""
    coordinator = Coordinator(Access(address), name)
    coordinator.join(Role(role, contract={'all': {}}, epoch=1), 60.0)
    return coordinator


def send(address: str, count: int, begin: float, secs: float, results: multiprocessing.Queue) -> None:
    """Sends the reports of `count` collectors, each once a second, spread over the second."""
    from tflearn.coordinator import reports

    reporters = [reports.Reporter(joined(address, f'collect_{i}')) for i in range(count)]
    sent, late_secs = 0, 0.0
    for second in range(int(secs)):
        for i, reporter in enumerate(reporters):
            wait = begin + second + i / count - time.monotonic()
            if wait > 0:
                threading.Event().wait(wait)
            late_secs = max(late_secs, -wait)
            sent += reporter.report({'env_steps': second + 1}, [_EPISODE])
    results.put((sent, late_secs, time.monotonic() - begin))


def cpu_secs(pid: int) -> float:
    """Returns the processor time that a process has taken [s]."""
    fields = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--collectors', type=int, default=1000)
    parser.add_argument('--processes', type=int, default=4)
    parser.add_argument('--secs', type=float, default=30.0)
    options = parser.parse_args()
    context, address = multiprocessing.get_context('spawn'), f'localhost:{free_port()}'
    server = context.Process(target=serve, args=(address,), daemon=True)
    server.start()
    from tflearn.coordinator import reports

    with contextlib.closing(joined(address, 'train', 'train')) as learner:
        results, share = context.Queue(), options.collectors // options.processes
        given = (address, share, time.monotonic() + _START_SECS, options.secs, results)
        senders = [context.Process(target=send, args=given, daemon=True) for _ in range(options.processes)]
        for sender in senders:
            sender.start()
        before, cpu, found = cpu_secs(server.pid or 0), time.process_time(), 0
        longest_secs = 0.0

        def count(report: object) -> None:
            nonlocal found
            found += 1

        reader = reports.ReportReader(learner, count)
        while any(sender.is_alive() for sender in senders):
            start = time.monotonic()
            reader.read()
            longest_secs = max(longest_secs, time.monotonic() - start)
            threading.Event().wait(1.0)
        sent = [results.get(timeout=120) for _ in senders]
        reader.read()
        used, own = cpu_secs(server.pid or 0) - before, time.process_time() - cpu
    server.kill()
    num_sent = sum(each[0] for each in sent)
    print(
        json.dumps(
            {
                'collectors': share * options.processes,
                'reports_per_sec': round(num_sent / max(each[2] for each in sent), 1),
                'reports_read': found,
                'episodes_sent': num_sent,
                'episodes_read': reader.count('reported_episodes'),
                'longest_read_secs': round(longest_secs, 3),
                'latest_sender_secs': round(max(each[1] for each in sent), 3),
                'server_cpu_secs_per_1000_reports': round(1000 * used / max(1, num_sent), 3),
                'learner_cpu_secs_per_1000_reports': round(1000 * own / max(1, num_sent), 3),
            }
        )
    )


if __name__ == '__main__':
    main()
