"""How fast are exported policies, in process beside TF-Agents' way, and over gRPC with and without batches?

    python benchmarks/serving.py --picture=docs/images/serving_latency.png
    python benchmarks/serving.py --log --cases=mlp --clients=64 --secs=6 --windows=12    what the log of decisions costs

In process: one observation at a time, against TF-Agents' SavedModelPyTFEagerPolicy on the same policy. Over gRPC: two
servers (`tflearn-serve`, with and without --batching) and closed-loop clients in a process of their own, on this same
machine. All sides are interleaved, in a round several times with `--windows`: the percentiles of a round are those of
all its requests. A ratio is the median of the ratios of the rounds.

Policies: `mlp` is CartPole's, so small that gRPC takes most of the time; `wide` has nine million weights, which are
read from memory once for a batch; `pixels` is the Nature network, whose convolutions are computed for each row.
"""

import argparse
import base64
import contextlib
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.policies import greedy_policy, policy_saver, py_tf_eager_policy, q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, tables  # noqa: E402
from tflearn.core.waiting import is_listening, wait_until  # noqa: E402
from tflearn.extensions.serving import tensor_protos  # noqa: E402
from tflearn.extensions.serving.tensor_protos import predict_pb2  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402
from tflearn.policies import loader  # noqa: E402
from tflearn.policies.exporter import PolicyExporter  # noqa: E402

SIDES = {'batching': ('--batching',), 'single': ('--nobatching',)}
LOG_SIDES: dict[str, tuple[str, ...]] = {
    'without': (),
    'another without': (),  # how much two equal servers differ
    'log': ('--decision_log={}',),
    'log and exploration': ('--decision_log={}', '--epsilon=0.05'),
}
# Observation's size, and layers.
MLPS = {'mlp': (4, (100, 50)), 'wide': (376, (2048, 2048, 2048))}
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
UNITS = {'rate': ('requests/s', 'requests'), 'p50_ms': ('ms', 'p50'), 'p99_ms': ('ms', 'p99')}
Measured = dict[str, list[dict[str, float]]]


def main() -> int:
    """Measures, prints the table, draws the plot."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--cases', default='mlp,wide,pixels')
    parser.add_argument('--clients', default='1,4,16,64')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--secs', type=float, default=2.0, help='of each side in a round')
    parser.add_argument('--windows', type=int, default=1, help='into which a round divides the seconds of each side')
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='PNG of latency against load')
    parser.add_argument('--log', action='store_true', help='measures the log of decisions instead')
    parser.add_argument('--quick', action='store_true', help='two short rounds, to see whether this program works')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs = 2, 0.5
    clients = [int(number) for number in options.clients.split(',')]
    rows, drawn = [], {}
    for case in options.cases.split(','):
        with tempfile.TemporaryDirectory() as root:
            policy = make_policy(case)
            PolicyExporter(policy, RunDir(root).greedy_policy).export(1, {})
            if options.log:
                rows += log_rows(case, root, observation(policy), clients, options)
                continue
            rows += in_process(case, policy, pathlib.Path(root), options.rounds)
            measured = over_grpc(root, observation(policy), clients, options, SIDES)
        rows += _grpc_rows(case, measured, clients)
        drawn[case] = measured
    command_line.finish(options.json, rows)
    if options.picture:
        draw(options.picture, drawn, clients)
    return 0


def make_policy(case: str) -> Any:
    """Returns a greedy Q policy: one of MLPS, or 'pixels' of 84x84x4 on the Nature network."""
    action = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1 if case == 'mlp' else 5, 'action')
    if case == 'pixels':
        spec = tensor_spec.BoundedTensorSpec((84, 84, 4), tf.uint8, 0, 255, 'observation')
        scale = tf.keras.layers.Lambda(lambda frames: tf.cast(frames, tf.float32) / 255)
        network = q_network.QNetwork(spec, action, scale, None, NATURE, fc_layer_params=(512,))
    else:
        size, layers = MLPS[case]
        spec = tf.TensorSpec((size,), tf.float32, 'observation')
        network = q_network.QNetwork(spec, action, fc_layer_params=layers)
    network.create_variables()
    return greedy_policy.GreedyPolicy(q_policy.QPolicy(ts.time_step_spec(spec), action, network))


def observation(policy: Any) -> np.ndarray:
    """Draws one observation, [1, ...]."""
    spec = policy.time_step_spec.observation
    drawn = np.random.default_rng(0).uniform(0, 2, [1, *spec.shape])
    return drawn.astype(spec.dtype.as_numpy_dtype)


def in_process(case: str, policy: Any, root: pathlib.Path, rounds: int) -> list[dict[str, Any]]:
    """Times one action after the other, both sides alternately."""
    policy_saver.PolicySaver(policy, batch_size=None).save(str(root / 'peer'))
    peer = py_tf_eager_policy.SavedModelPyTFEagerPolicy(
        str(root / 'peer'), policy.time_step_spec, policy.action_spec, load_specs_from_pbtxt=False
    )
    ours = loader.load(RunDir(root).greedy_policy / '1')
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
    time_step = ts.TimeStep(np.ones(1, np.int32), none, one, observation(policy))
    alone = tf.nest.map_structure(lambda value: value[0], time_step)  # as it is documented: it adds the batch
    calls = {'ours': lambda: ours.action(time_step), 'peer': lambda: peer.action(alone)}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds + 1):  # the first one warms up
        for name, call in calls.items():
            measured[name].append(_percentiles(call, 1000 if case == 'mlp' else 300))
    return [
        _row(case, f'one action in process, {metric}', 'us', *([f[i] for f in measured[name][1:]] for name in calls))
        for i, metric in enumerate(('p50', 'p99'))
    ]


def _percentiles(call: Callable[[], object], count: int) -> tuple[float, float]:
    latencies = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        latencies.append(time.perf_counter() - start)
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e6
    return float(p50), float(p99)


def over_grpc(
    root: str,
    observed: np.ndarray,
    clients: Sequence[int],
    options: argparse.Namespace,
    sides: Mapping[str, Sequence[str]],
) -> Measured:
    """Measures servers of these flags alternately; returns the measurements of each round by '<side> <clients>'."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = 'greedy_policy'
    tensor_protos.fill(request.inputs['observation'], observed, content=True)
    data = base64.b64encode(request.SerializeToString()).decode()
    measured: Measured = {f'{side} {number}': [] for side in sides for number in clients}
    with contextlib.ExitStack() as stack:
        addresses = {side: stack.enter_context(_server(root, *flags)) for side, flags in sides.items()}
        load = stack.enter_context(_process('-m', 'benchmarks.serving_load'))
        random = np.random.default_rng(0)  # of the order: who comes after itself has an advantage
        for _, number in itertools.product(range(options.rounds), clients):
            latencies: dict[str, list[float]] = {side: [] for side in addresses}
            for _ in range(options.windows):
                for side in random.permutation([*addresses]).tolist():
                    secs = options.secs / options.windows
                    order = {'address': addresses[side], 'clients': number, 'secs': secs, 'request': data}
                    print(json.dumps(order), file=load.stdin, flush=True)
                    latencies[side] += json.loads(load.stdout.readline())
            for side, found in latencies.items():
                p50, p99 = map(float, np.percentile(found, (50, 99)))
                measured[f'{side} {number}'].append({'rate': len(found) / options.secs, 'p50_ms': p50, 'p99_ms': p99})
    return measured


def log_rows(
    case: str, root: str, observed: np.ndarray, clients: Sequence[int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measures a server with a log of decisions beside one without."""
    sides = {side: [flag.format(f'{root}/log') for flag in flags] for side, flags in LOG_SIDES.items()}
    measured = over_grpc(root, observed, clients, options, sides)
    found = []
    for number in clients:
        for side in [*sides][1:]:
            for key, (unit, name) in UNITS.items():
                values = [[item[key] for item in measured[f'{each} {number}']] for each in (side, 'without')]
                text = f'gRPC, {number} clients, {name}: {side} beside without'
                found.append(_row(case, text, unit, *values) | {'limit': 1.05 if key == 'p99_ms' else None})
    return found


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _server(root: str, *flags: str) -> Iterator[str]:
    port = free_port()
    with _process('-m', 'scripts.serve', f'--root_dir={root}', f'--port={port}', *flags):
        wait_until(lambda: is_listening(f'localhost:{port}'), 'the server', 60)
        status = RunDir(root).status('serve')
        wait_until(lambda: f'"port": {port}' in _text(status) and '"running"' in _text(status), 'its policy', 60)
        yield f'localhost:{port}'


def _text(path: pathlib.Path) -> str:
    return path.read_text(encoding='utf-8') if path.exists() else ''


def _grpc_rows(case: str, measured: Measured, clients: Sequence[int]) -> list[dict[str, Any]]:
    return [
        _row(
            case,
            f'gRPC, {number} clients, {name}: batching beside --nobatching',
            unit,
            *([item[key] for item in measured[f'{side} {number}']] for side in SIDES),
        )
        for number in clients
        for key, (unit, name) in UNITS.items()
    ]


def _row(case: str, metric: str, unit: str, ours: Sequence[float], peer: Sequence[float]) -> dict[str, Any]:
    return {
        'case': case,
        'metric': metric,
        'ours': statistics.median(ours),
        'peer': statistics.median(peer),
        'limit': None,
        'ratio_to_peer': tables.ratio(ours, peer),
        'ratio_to_limit': None,
        'unit': unit,
        'rounds': len(ours),
    }


def draw(path: pathlib.Path, drawn: dict[str, Measured], clients: Sequence[int]) -> None:
    """Draws the latency at each number of clients against the requests that were answered."""
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(drawn), figsize=(5.5 * len(drawn), 4), squeeze=False)
    for axis, (case, measured) in zip(axes[0], drawn.items(), strict=True):
        for side, colour in zip(SIDES, ('C0', 'C1'), strict=True):
            median = {
                key: [statistics.median(f[key] for f in measured[f'{side} {number}']) for number in clients]
                for key in ('rate', 'p50_ms', 'p99_ms')
            }
            axis.plot(median['rate'], median['p50_ms'], f'{colour}o-', label=f'{side}, p50')
            axis.plot(median['rate'], median['p99_ms'], f'{colour}^--', label=f'{side}, p99')
        axis.set(title=f'{case}; clients: {", ".join(map(str, clients))}', xlabel='requests/s', ylabel='latency, ms')
        axis.set_yscale('log')
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == '__main__':
    sys.exit(main())
