"""The control plane of many collectors: reports of fake collectors in a few processes, and a learner that reads them.

    python benchmarks/control.py --collectors=1000 --processes=4 --secs=30

Each fake collector sends one report a second with one episode in it. The collectors of a process share its connection,
so there are as many as processes, and one of the reader; a real collector has one of its own. Prints a line of JSON;
`latest_sender_secs` far above 0 means that the machine is too slow for so many senders.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tflearn import control
from tflearn.launch.local import free_port

_EPISODE = {'return': 123.0, 'length': 123.0}


def serve(port: int, directory: str) -> None:
    """Runs a replay server that has the table of reports alone."""
    from tflearn.replay import reports
    from tflearn.replay.server import ReplayServer

    server = ReplayServer([reports.table()], port, pathlib.Path(directory) / 'checkpoints')
    threading.Event().wait(3600)
    server.close()


def send(address: str, count: int, begin: float, secs: float, results: multiprocessing.Queue) -> None:
    """Sends the reports of `count` collectors, each once a second, spread over the second."""
    from tflearn.replay import reports

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


def connections(port: int) -> int:
    """Returns the number of open connections to a port of this machine."""
    rows = [
        line.split()
        for name in ('tcp', 'tcp6')
        for line in pathlib.Path(f'/proc/net/{name}').read_text(encoding='utf-8').splitlines()[1:]
    ]
    return sum(row[3] == '01' and int(row[2].rpartition(':')[2], 16) == port for row in rows)


def read(address: str, port: int, is_over: Callable[[], bool]) -> dict[str, float]:
    """Reads reports as the learner does, until all were read. Returns its metrics."""
    from tflearn.replay import connection, reports

    found: list[control.Report] = []
    reader = reports.ReportReader(address, found.append)
    secs, most, num_reads, open_ones, size = 0.0, 0, 0, 0, 1
    longest_secs = 0.0
    while size or not is_over():
        info = connection.server_info(address)
        size = info[reports.REPORTS].current_size if info else 0
        start = time.monotonic()
        reader.read(size)
        spent = time.monotonic() - start
        secs, longest_secs = secs + spent, max(longest_secs, spent)
        most, num_reads = max(most, size), num_reads + 1
        open_ones = max(open_ones, connections(port))
        threading.Event().wait(reader.poll_secs)
    return {
        'reports_read': len(found),
        'collectors_known': len({report.lease.owner for report in found}),
        'reads': num_reads,
        'most_reports_at_once': most,
        'secs_per_1000_reports': 1000 * secs / max(1, len(found)),
        'longest_read_secs': longest_secs,
        'connections': open_ones,
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--collectors', type=int, default=1000)
    parser.add_argument('--processes', type=int, default=4)
    parser.add_argument('--secs', type=float, default=30.0)
    options = parser.parse_args()
    context, port = multiprocessing.get_context('spawn'), free_port()
    address, results = f'localhost:{port}', context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        server = context.Process(target=serve, args=(port, directory), daemon=True)
        server.start()
        from tflearn.replay import connection
        from tflearn.waiting import wait_until

        wait_until(lambda: connection.server_info(address), 'the server', 120)
        begin = time.monotonic() + 30  # until all processes have loaded their libraries
        share = options.collectors // options.processes
        senders = [
            context.Process(target=send, args=(address, share, begin, options.secs, results), daemon=True)
            for _ in range(options.processes)
        ]
        for sender in senders:
            sender.start()
        found = read(address, port, lambda: not any(sender.is_alive() for sender in senders))
        sent = [results.get(timeout=120) for _ in senders]
        reports_sent, num_bytes = sum(each[0] for each in sent), sum(each[1] for each in sent)
        secs = max(each[3] for each in sent)
        found |= {
            'collectors': share * options.processes,
            'reports_sent': reports_sent,
            'reports_per_sec': reports_sent / secs,
            'bytes_per_sec': num_bytes / secs,
            'latest_sender_secs': max(each[2] for each in sent),
        }
        server.kill()
    print(json.dumps({name: round(value, 4) for name, value in sorted(found.items())}))


if __name__ == '__main__':
    main()
