"""How many environment steps does one collecting process write to a replay server in another, beside the peers?

    python benchmarks/collect.py --rllib_python=rllib_environment/bin/python

CartPole-v1, policy MLP 100-50, every step written and counted there. Ours steps a batch of environments, 'native' by
gymnasium's own vector environment, 'in_process' as copies one after the other, 'worker_processes' (--ours) by those of
`gymnasium_env.make`. TF-Agents' is its documented Actor.
RLlib's env runner (its samples stay in its process) has an environment of its own: benchmarks/requirements_rllib.txt
shows how. It samples in fragments of PPO's default length: with one environment, its default, with as many as
ours one after the other (`sync`, its default), and with as many in gymnasium's vector environment
(`vector_entry_point`). All sides are interleaved; a ratio is the median of the ratios of the rounds.
"""

import contextlib
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import collect_sides, command_line, tables  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

WANTED = {
    ('native', 'tf_agents'): 100,
    ('in_process', 'tf_agents'): 40,
    ('native', 'rllib_1'): 10,
    ('native', 'rllib_64_vector'): 10,
}
_CHECKED_SECS = 0.2


def main() -> int:
    """Measures all sides interleaved, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--ours', nargs='+', default=['native', 'in_process'], help='also worker_processes')
    parser.add_argument('--num_environments', type=int, default=64)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--secs', type=float, default=4.0, help='of each side in a round')
    parser.add_argument('--rllib_python', type=pathlib.Path, default=ROOT / 'rllib_environment' / 'bin' / 'python')
    parser.add_argument('--quick', action='store_true', help='three short rounds')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs = 3, 1.0
    with _sides(options.ours, options.num_environments, options.rllib_python) as (sides, versions):
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, side in sides.items():
                rates[name].append(side.sample(options.secs))
    rows = _rows(options.ours, rates, versions, options.num_environments)
    print(tables.table(rows))
    for (side, peer), wanted in WANTED.items():
        if side in rates and peer in rates:
            print(f'{side} beside {peer}: {tables.ratio(rates[side], rates[peer]):.1f}x (wanted: {wanted}x)')
    command_line.write(options.json, rows)
    return 0


@contextlib.contextmanager
def _sides(
    ours: Sequence[str], num_environments: int, rllib_python: pathlib.Path
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    versions = {collect_sides.PEER: f'TF-Agents {importlib.metadata.version("tf-agents")}'}
    names = [*ours, collect_sides.PEER]
    ports = {name: free_port() for name in names}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_server(ports))
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: dict[str, Any] = {name: collect_sides.OurSide(name, num_environments, ports[name]) for name in ours}
        for side in sides.values():
            side.sample(_CHECKED_SECS)
            side.check()
        sides[collect_sides.PEER] = collect_sides.PeerSide(ports[collect_sides.PEER], directory)
        sides[collect_sides.PEER].sample(1.0)
        if rllib_python.exists():
            for count, mode in ((1, 'sync'), (num_environments, 'sync'), (num_environments, 'vector_entry_point')):
                rllib = collect_sides.RllibSide(rllib_python, count, mode)
                stack.callback(rllib.close)
                name = f'rllib_{count}' if mode == 'sync' else f'rllib_{count}_vector'
                sides[name] = rllib
                versions[name] = f'RLlib {rllib.version}, environments: {count}, {mode}'
        else:
            print(f'no RLlib: there is no {rllib_python}; benchmarks/requirements_rllib.txt shows how')
        yield sides, versions


@contextlib.contextmanager
def _server(ports: dict[str, int]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.collect_server', f'--ports={json.dumps(ports)}'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout
        if process.stdout.readline().strip() != 'serving':
            raise RuntimeError('the replay process could not start; run benchmarks/collect_server.py to see why')
        yield
    finally:
        process.kill()
        process.wait()


def _rows(
    ours: Sequence[str], rates: dict[str, Sequence[float]], versions: dict[str, str], num_environments: int
) -> list[dict[str, Any]]:
    return [
        {
            'case': f'{collect_sides.ENVIRONMENT}: {num_environments} {side}',
            'metric': f'every step in the replay server, beside {version}',
            'ours': statistics.median(rates[side]),
            'peer': statistics.median(rates[peer]),
            'limit': None,
            'ratio_to_peer': tables.ratio(rates[side], rates[peer]),
            'ratio_to_limit': None,
            'unit': 'environment steps/s',
            'rounds': len(rates[side]),
        }
        for side in ours
        for peer, version in versions.items()
    ]


if __name__ == '__main__':
    sys.exit(main())
