"""The control plane of many collectors: reports and polls of fake collectors in a few processes, a learner that reads.

    python benchmarks/control.py --collectors=1000 --processes=4 --secs=30
    python benchmarks/control.py --collectors=1000 --polls            # their polls for weights and credits instead
    python benchmarks/control.py --collectors=1000 --polls --in_step  # all with the same pauses

Each fake collector sends one report a second with one episode in it. The collectors of a process share its connection,
so there are as many as processes, and one of the reader; a real collector has one of its own. Prints a line of JSON;
`latest_sender_secs` far above 0 means that the machine is too slow for so many senders. `server_cpu_secs` and
`learner_cpu_secs` are the processor time of the server and of the reader.

`--polls`: each fake collector asks for new weights and credits, as a real one does, from the same moment on; the
credits, which name all of them, stay the same. The server counts nothing, so the askers note when they ask.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tflearn.coordinator import control
from tflearn.launch.local import free_port

_EPISODE = {'return': 123.0, 'length': 123.0}
_START_SECS = 30.0  # until all processes have loaded their libraries
_BIN_SECS = 0.1


def serve(port: int, directory: str) -> None:
    """Runs a replay server that has the tables of reports, credits and weights."""
    from tflearn.coordinator import credits, reports, weights_contract
    from tflearn.learner import machine
    from tflearn.replay.reverb.server import ReplayServer

    machine.raise_file_handles()
    tables = [reports.table(), credits.table(), weights_contract.table([])]
    server = ReplayServer(tables, port, pathlib.Path(directory) / 'checkpoints')
    threading.Event().wait(3600)
    server.close()


def send(address: str, count: int, begin: float, secs: float, results: multiprocessing.Queue) -> None:
    """Sends the reports of `count` collectors, each once a second, spread over the second."""
    from tflearn.coordinator import reports

    reporters = [reports.Reporter(address, f'collect_{i}') for i in range(count)]
    sent = num_bytes = 0
    late_secs = 0.0
    for second in range(int(secs)):
        for i, reporter in enumerate(reporters):
            due = begin + second + i / count
            wait = due - time.monotonic()
            if wait > 0:
                threading.Event().wait(wait)
            late_secs = max(late_secs, -wait)
            reporter.report({'env_steps': second + 1}, [_EPISODE])
            lease, counts = reporter.held.lease, {'env_steps': second + 1}
            num_bytes += len(control.encode(control.Report(lease, counts, [_EPISODE])))
            sent += 1
    results.put((sent, num_bytes, late_secs, time.monotonic() - begin))


def poll(address: str, names: list[str], begin: float, secs: float, results: multiprocessing.Queue) -> None:
    """Polls for the weights and the credits of some collectors; puts the times at which the server was asked."""
    from tflearn.coordinator import credits, weights_channels
    from tflearn.replay import connection

    asked: list[float] = []
    ask = connection.counts

    def counted(*arguments: Any) -> dict[str, Any] | None:
        asked.append(time.monotonic())
        return ask(*arguments)

    opened = [weights_channels.connect(address, [], weights_channels.Plane(), name) for name in names]
    threading.Event().wait(max(0.0, begin - time.monotonic()))
    counting = mock.patch.object(connection, 'counts', counted)
    counting.start()
    end = begin + secs

    def follow(channel: weights_channels.Channel) -> None:
        while time.monotonic() < end:
            channel.next()

    threads = [threading.Thread(target=follow, args=(channel,), daemon=True) for channel in opened]
    for thread in threads:
        thread.start()
    readers = [credits.CreditReader(address, name) for name in names]
    threading.Event().wait(max(0.0, end - time.monotonic()))
    counting.stop()
    results.put(asked)
    results.close()
    results.join_thread()
    del readers
    os._exit(0)  # its threads are still asking


def grant(address: str, shares: int) -> None:
    """Sends credits that name `shares` collectors, as the learner does."""
    from tflearn.coordinator import credits

    named = tuple(control.Share(control.new_lease(f'collect_{i}').owner, 1, 8, 0, 0) for i in range(shares))
    credits.send(address, control.Credits(control.new_lease('train'), 0, 5, 8, shares=named))


def connections(port: int) -> int:
    """Returns the number of open connections to a port of this machine."""
    rows = [
        line.split()
        for name in ('tcp', 'tcp6')
        for line in pathlib.Path(f'/proc/net/{name}').read_text(encoding='utf-8').splitlines()[1:]
    ]
    return sum(row[3] == '01' and int(row[2].rpartition(':')[2], 16) == port for row in rows)


def cpu_secs(pid: int) -> float:
    """Returns the processor time that a process has taken [s]."""
    fields = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def open_files(pid: int) -> int:
    """Returns the number of a process's open files."""
    return len(os.listdir(f'/proc/{pid}/fd'))


def read(address: str, port: int, server_pid: int, is_over: Callable[[], bool]) -> dict[str, float]:
    """Reads reports as the learner does, until all were read. Returns its metrics."""
    from tflearn.coordinator import reports
    from tflearn.replay import connection

    found: list[control.Report] = []
    reader = reports.ReportReader(address, found.append)
    secs, most, num_reads, open_ones, files, size = 0.0, 0, 0, 0, 0, 1
    longest_secs = cpu = 0.0
    while size or not is_over():
        cpu_before = time.process_time()
        info = connection.counts(address)
        size = info[reports.REPORTS].size if info else 0
        start = time.monotonic()
        reader.read(size)
        spent = time.monotonic() - start
        cpu += time.process_time() - cpu_before
        secs, longest_secs = secs + spent, max(longest_secs, spent)
        most, num_reads = max(most, size), num_reads + 1
        open_ones, files = max(open_ones, connections(port)), max(files, open_files(server_pid))
        threading.Event().wait(reader.poll_secs)
    thousands = max(1, len(found)) / 1000
    return {
        'reports_read': len(found),
        'collectors_known': len({report.lease.owner for report in found}),
        'reads': num_reads,
        'most_reports_at_once': most,
        'secs_per_1000_reports': secs / thousands,
        'learner_cpu_secs_per_1000_reports': cpu / thousands,
        'longest_read_secs': longest_secs,
        'connections': open_ones,
        'open_files_of_server': files,
    }


def measure_reports(options: argparse.Namespace, address: str, server: Any, begin: float) -> dict[str, float]:
    """Sends and reads reports."""
    context = multiprocessing.get_context('spawn')
    results = context.Queue()
    share = options.collectors // options.processes
    senders = [
        context.Process(target=send, args=(address, share, begin, options.secs, results), daemon=True)
        for _ in range(options.processes)
    ]
    for sender in senders:
        sender.start()
    before = cpu_secs(server.pid)
    port = int(address.rpartition(':')[2])
    found = read(address, port, server.pid, lambda: not any(sender.is_alive() for sender in senders))
    sent = [results.get(timeout=120) for _ in senders]
    reports_sent, num_bytes = sum(each[0] for each in sent), sum(each[1] for each in sent)
    secs = max(each[3] for each in sent)
    return found | {
        'collectors': share * options.processes,
        'reports_sent': reports_sent,
        'reports_per_sec': reports_sent / secs,
        'bytes_per_sec': num_bytes / secs,
        'latest_sender_secs': max(each[2] for each in sent),
        'server_cpu_secs_per_1000_reports': 1000 * (cpu_secs(server.pid) - before) / max(1, reports_sent),
    }


def measure_polls(options: argparse.Namespace, address: str, server: Any, begin: float) -> dict[str, float]:
    """Counts polls for weights and credits, in bins of 100 ms."""
    import numpy as np

    context = multiprocessing.get_context('spawn')
    results = context.Queue()
    share = options.collectors // options.processes
    names = ['collect_0' if options.in_step else f'collect_{i}' for i in range(share * options.processes)]
    askers = [
        context.Process(
            target=poll, args=(address, names[i * share : (i + 1) * share], begin, options.secs, results), daemon=True
        )
        for i in range(options.processes)
    ]
    for asker in askers:
        asker.start()
    grant(address, len(names))
    threading.Event().wait(max(0.0, begin - time.monotonic()))
    before = cpu_secs(server.pid)
    asked = np.concatenate([results.get(timeout=120 + options.secs) for _ in askers]) - begin
    used = cpu_secs(server.pid) - before
    bins = np.bincount((asked / _BIN_SECS).astype(int), minlength=int(options.secs / _BIN_SECS))
    return {
        'collectors': len(names),
        'requests_per_sec': len(asked) / options.secs,
        'requests_in_first_100_ms': bins[0],
        'most_requests_in_100_ms': bins.max(),
        'most_requests_in_100_ms_after_2_s': bins[int(2 / _BIN_SECS) :].max(),
        'median_requests_in_100_ms': float(np.median(bins)),
        'server_cpu_secs_per_1000_requests': 1000 * used / max(1, len(asked)),
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--collectors', type=int, default=1000)
    parser.add_argument('--processes', type=int, default=4)
    parser.add_argument('--secs', type=float, default=30.0)
    parser.add_argument('--polls', action='store_true', help='polls for weights and credits instead of reports')
    parser.add_argument('--in_step', action='store_true', help='all fake collectors have one name, and so one jitter')
    options = parser.parse_args()
    context, port = multiprocessing.get_context('spawn'), free_port()
    address = f'localhost:{port}'
    with tempfile.TemporaryDirectory() as directory:
        server = context.Process(target=serve, args=(port, directory), daemon=True)
        server.start()
        from tflearn.core.waiting import wait_until
        from tflearn.replay import connection

        wait_until(lambda: connection.counts(address), 'the server', 120)
        measure = measure_polls if options.polls else measure_reports
        found = measure(options, address, server, time.monotonic() + _START_SECS)
        server.kill()
    print(json.dumps({name: round(float(value), 4) for name, value in sorted(found.items())}))


if __name__ == '__main__':
    main()
