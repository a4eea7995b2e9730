"""Serves a run's policy on this machine, and asks every port by the names `localhost` and `[::1]`."""

import contextlib
import subprocess
import sys
import urllib.request

from tests.testing import console_programs
from tflearn.core.waiting import is_listening, wait_until
from tflearn.extensions.serving.client import PolicyClient
from tflearn.launch.local import free_port


def main(root: str) -> None:
    """Prints a line for each answer."""
    port, rest, metrics, run_metrics = (free_port() for _ in range(4))
    serve = f'--root_dir={root}', f'--port={port}', f'--rest_port={rest}', f'--metrics_port={metrics}'
    with contextlib.ExitStack() as opened:
        for program, flags in (('serve', serve), ('run_metrics', (f'--root_dir={root}', f'--port={run_metrics}'))):
            process = subprocess.Popen([sys.executable, '-m', *console_programs.words(program), *flags])
            opened.callback(process.wait)
            opened.callback(process.kill)
        paths = {rest: '/v1/models/greedy_policy', metrics: '/metrics', run_metrics: '/metrics'}
        for host in ('localhost', '[::1]'):
            wait_until(lambda host=host: is_listening(f'{host}:{port}'), 'the policy server', 120.0)
            with contextlib.closing(PolicyClient(f'{host}:{port}', 'greedy_policy')) as client:
                version = wait_until(client.newest_version, 'the policy', 120.0)
                sys.stdout.write(f'{host} gRPC {version}\n')
            for number, path in paths.items():
                wait_until(lambda host=host, number=number: is_listening(f'{host}:{number}'), path, 60.0)
                with urllib.request.urlopen(f'http://{host}:{number}{path}', timeout=30.0) as answer:
                    sys.stdout.write(f'{host} {path} {answer.status}\n')


if __name__ == '__main__':
    main(sys.argv[1])
