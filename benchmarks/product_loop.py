"""Does the product loop keep up with a world that changes, and does its data survive kills?

    python benchmarks/product_loop.py --seeds=5 --output=results

A simulated product asks tflearn-serve by gRPC, and logs what came of it: a news page, or a compiler, whose worlds
change in each round (`product_worlds`). After each round tflearn loop joins, splits, trains, judges and promotes.
Compared are the greedy policies that served, by their regret with the sessions of the next round: with the gate;
without it; and the policy of the first round, frozen. Each loop is kept, and not run again. `--kill` kills the server,
the loop and its programs at random moments, and compares the data sets with those that are made again from the same
files.
"""

import argparse
import contextlib
import filecmp
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import command_line  # noqa: E402
from benchmarks.product_worlds import ROWS, Inlining, News, Request, World  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.data.reader import Dataset, EpisodeReader  # noqa: E402
from tflearn.extensions.serving.client import PolicyClient  # noqa: E402
from tflearn.files.run_dir import read_json  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402
from tflearn.policies import versions  # noqa: E402

WINDOW_SECS, SETTLE_SECS, EPSILON = 1.0, 0.1, 0.3
DEADLINE_SECS, MEAN_SECS_BETWEEN_KILLS = 900.0, 10.0
LOOP = """
from __gin__ import dynamic_registration
from tflearn.extensions.product import loop

loop.loop.logs = @loop.Logs()
loop.Logs.decisions = ['{folder}/decisions']
loop.Logs.outcomes = ['{folder}/outcomes']
loop.Logs.columns = '{folder}/columns.toml'
loop.Logs.window_secs = {window}
loop.Logs.settle_secs = {settle}
loop.loop.training = @loop.Training()
loop.Training.gin_file = '{training}'
loop.Training.gin_bindings = {bindings}
loop.loop.serving = '{folder}/serving'
loop.loop.gate = {gate}
loop.loop.schedule = @loop.Schedule()
loop.Schedule.decisions = {decisions}
loop.Schedule.poll_secs = 0.5
"""
GATE = """@loop.Gate()
loop.Gate.epsilon = {epsilon}
loop.Gate.held_out = {held_out}
loop.Gate.held_out_rounds = {rounds}
loop.Gate.margin = {margin}"""
NAMES = {'gated': 'with the gate', 'always': 'without the gate', 'frozen': 'the first policy'}


class Product:
    """One product: its users, its server, its loop."""

    def __init__(
        self, folder: pathlib.Path, world: World, seed: int, held_out: float | None, given: argparse.Namespace
    ):
        """Writes what the programs need, and the log of decisions that was there before.

        Args:
          held_out: the share of new decisions that the gate holds out; None is no gate.
        """
        self.folder, self.world, self._random = folder, world, np.random.default_rng(seed)
        self._batches = given.decisions // (ROWS * world.steps)
        self.port, self.kills = free_port(), 0
        self._channel = grpc.insecure_channel(f'localhost:{self.port}')
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        for name in ('decisions', 'outcomes', 'serving'):
            (folder / name).mkdir(parents=True)
        (folder / 'columns.toml').write_text(world.columns)
        bindings = [f'train.Initial.seed = {seed}', 'train.ExportOptions.policies = ("greedy_policy",)']
        gate = 'None'
        if held_out:
            gate = GATE.format(epsilon=EPSILON, held_out=held_out, rounds=given.held_out_rounds, margin=world.margin)
        # A killed server loses the decisions of its last second.
        logged = given.decisions * (3 if given.kill else 4) // 4
        (folder / 'loop.gin').write_text(
            LOOP.format(
                gate=gate, decisions=logged, folder=folder, window=WINDOW_SECS, settle=SETTLE_SECS,
                training=world.training, bindings=[*bindings, *world.bindings],
            )
        )  # fmt: skip

    def start(self, name: str) -> None:
        """Starts the server or the loop."""
        own = {
            'serve': (
                'scripts.serve',
                f'--root_dir={self.folder}/serving',
                f'--port={self.port}',
                f'--epsilon={EPSILON}',
                f'--decision_log={self.folder}/decisions',
                f'--connect_timeout_secs={DEADLINE_SECS}',  # the first round takes long
                '--decision_log_file_secs=1',
            ),
            'loop': ('scripts', 'loop', f'--root_dir={self.folder}/loop', f'--gin_file={self.folder}/loop.gin'),
        }
        with (self.folder / f'{name}.log').open('ab') as log:
            command = [sys.executable, '-m', *own[name]]
            self.programs[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def outcomes(self, name: str, rewards: list[tuple[str, float]], at: float) -> None:
        """Writes what came of some decisions, in a file that appears whole."""
        lines = [json.dumps({'event_id': i, 'time': at, 'reward': reward}) for i, reward in rewards]
        _write(self.folder / 'outcomes' / f'outcomes-{name}.jsonl', lines)

    def first_decisions(self) -> None:
        """Writes the log of the system before."""
        before, sessions = time.time() - 2 * WINDOW_SECS, 2 * self._batches * ROWS
        logged = list(self.world.before(self._random, sessions))
        self.outcomes('0', [(each.line['id'], each.reward) for each in logged], before)
        # What comes now ends the log, and is left out.
        self.outcomes('end', [('none', 0.0)], time.time())
        times = [before] * (len(logged) - self.world.steps) + [time.time()] * self.world.steps
        lines = [json.dumps({**each.line, 'time': at}) for each, at in zip(logged, times, strict=True)]
        _write(self.folder / 'decisions' / 'decisions-0.jsonl', lines)

    def traffic(self, number: int) -> None:
        """Asks for the decisions of a round; the last request comes when the windows of the others are closed."""
        for k in range(self._batches):
            if k == self._batches - 1:
                threading.Event().wait(1.2 * WINDOW_SECS)
            name = f'{number}-{k}'
            self.outcomes(name, self.world.decide(self._random, number, name, self._ask), time.time())

    def _ask(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """Returns the actions; asks again, under the same ids, if the server was killed."""
        answers: dict[str, np.ndarray] = {}

        def all_answers() -> bool:
            missing = [each for each in requests if each.event_id not in answers]
            futures = [(each.event_id, self._sent(each)) for each in missing]
            for event_id, future in futures:
                with contextlib.suppress(grpc.RpcError):
                    answers[event_id] = tf.make_ndarray(future.result().outputs['action'])
            return len(answers) == len(requests)

        wait_until(all_answers, 'answers', DEADLINE_SECS)
        return [answers[each.event_id] for each in requests]

    def _sent(self, asked: Request) -> Any:
        """Sends a request; returns the future of its answer."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = 'greedy_policy'
        for name, value in asked.inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        metadata = [('event-id', asked.event_id), *([('experiment-arm', asked.session)] if asked.session else [])]
        stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        return stub.Predict.future(request, 60.0, metadata)

    def result(self, number: int) -> dict | None:
        """Returns the result of a round; None while it runs. Raises RuntimeError if a program failed."""
        for name, program in self.programs.items():
            if program.poll() not in (None, -signal.SIGKILL):
                raise RuntimeError(f'{name} ended with {program.returncode}; see {self.folder}/{name}.log')
        return read_json(self.folder / 'loop' / 'rounds' / str(number) / 'end.json')

    def forget(self, number: int) -> None:
        """Removes the files that a round read, which a product keeps as long as they are of use."""
        inputs = json.loads((self.folder / 'loop' / 'rounds' / str(number) / 'round.json').read_text())
        for path in inputs['decisions'] + inputs['outcomes']:
            pathlib.Path(path).unlink(missing_ok=True)

    def promote_first(self) -> None:
        """Makes the first policy serve, where the old log does not decide on it: before it there is none."""
        where = [f'--root_dir={self.folder}/serving', f'--candidate={self.version(1)}', '--why=the first one']
        command = [sys.executable, '-m', 'scripts', 'promote', *where, '--ungated']
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    def version(self, number: int | None = None) -> pathlib.Path:
        """Returns the newest version that serves, or the candidate of a round."""
        trained = self.folder / 'loop' / 'rounds' / str(number) / 'run'
        directory = (trained if number else self.folder / 'serving') / 'policies' / 'greedy_policy'
        return directory / str(versions.newest_version(directory))

    def follows(self) -> bool:
        """Returns whether the server answers with the newest version."""
        with contextlib.suppress(grpc.RpcError), contextlib.closing(PolicyClient(f'localhost:{self.port}')) as client:
            return client.newest_version() == int(self.version().name)
        return False

    @contextlib.contextmanager
    def running(self, kills: bool) -> Iterator[None]:
        """Starts the programs; kills and starts them again during the block, if that is wanted."""
        stop, dice = threading.Event(), random.Random(1)

        def kill() -> None:
            while not stop.wait(dice.expovariate(1 / MEAN_SECS_BETWEEN_KILLS)):
                name = dice.choice(['serve', 'loop', 'step', 'step'])
                steps = _descendants(self.programs['loop'].pid) if name == 'step' else []
                pid = dice.choice(steps) if steps else self.programs[name if name != 'step' else 'loop'].pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1
                for each, program in list(self.programs.items()):
                    if program.pid == pid:
                        program.wait()
                        self.start(each)

        self.start('serve')
        self.start('loop')
        killer = threading.Thread(target=kill)
        try:
            if kills:
                killer.start()
            yield
        finally:
            stop.set()
            if kills:
                killer.join()
            for program in self.programs.values():
                program.terminate()
            for program in self.programs.values():
                program.wait(DEADLINE_SECS)


def _descendants(pid: int) -> list[int]:
    """Returns the programs that a loop runs: its children, and theirs."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(')')[2].split()[1]), []).append(int(path.parent.name))
    found, todo = [], [pid]
    while todo:
        todo += (its := children.get(todo.pop(), []))
        found += its
    return found


def _write(path: pathlib.Path, lines: Sequence[str]) -> None:
    """Writes a file that appears whole."""
    begun = path.with_suffix('.begun')
    begun.write_text(''.join(line + '\n' for line in lines))
    begun.rename(path)


def run(folder: pathlib.Path, seed: int, held_out: float | None, given: argparse.Namespace) -> dict[str, list]:
    """Runs the rounds of one product; returns the regrets after each, with the sessions of the next one."""
    world = News(given.items) if given.world == 'news' else Inlining()
    product = Product(folder, world, seed, held_out, given)
    found: dict[str, list] = {name: [] for name in ('served', 'frozen', 'promoted', 'waits')}
    product.first_decisions()
    with product.running(given.kill):
        for number in range(1, given.rounds + 1):
            if number > 1:
                wait_until(product.follows, 'the new version at the server', DEADLINE_SECS)
                product.traffic(number)
            result = wait_until(lambda n=number: product.result(n), f'round {number}', DEADLINE_SECS)
            if number == 1 and not result['promoted']:
                product.promote_first()
            # A round reads what is new, what was new in the round before, and all that may still judge.
            old = number - max(1, given.held_out_rounds - 1)
            if old > 0 and not given.kill:
                product.forget(old)
            found['promoted'].append(result['candidate'] if result['promoted'] else None)
            found['waits'].append(result['waits'])
            found['served'].append(world.regret(product.version(), number + 1))
            found['frozen'].append(world.regret(product.version(1), number + 1))
            print(time.strftime('%T'), folder.name, number, *(f'{k} {v[-1]}' for k, v in found.items()), flush=True)
    if given.kill:
        found['kills'] = [product.kills]
        check_data(product, given)
    return found


def check_data(product: Product, given: argparse.Namespace) -> None:
    """Makes each data set again from the files that its round read; raises RuntimeError if one differs."""
    for number in range(1, given.rounds + 1):
        directory = product.folder / 'loop' / 'rounds' / str(number)
        again = product.folder / 'again' / str(number)
        again.mkdir(parents=True)
        inputs = json.loads((directory / 'round.json').read_text())
        join = [f'--{kind}={path}' for kind in ('decisions', 'outcomes') for path in inputs[kind]]
        join += [f'--window_secs={WINDOW_SECS}', f'--settle_secs={SETTLE_SECS}', '--default_reward=0']
        commands = [['join', *join, f'--columns={product.folder}/columns.toml', f'--output={again}/joined']]
        before = [again.with_name(str(number - 1)) / name for name in ('parts', 'later')]
        earlier = [f'--earlier={path}' for path in before if path.exists()][:1]
        for name, share in (('later', 1), ('parts', given.held_out)):
            if (directory / name).exists():
                split = ['split', f'--data={again}/joined', f'--share={share}', '--by=id', f'--output={again}/{name}']
                commands.append([*split, f'--rounds={given.held_out_rounds}', *earlier])
        for command in commands:
            subprocess.run(
                [sys.executable, '-m', 'scripts', 'data', *command], cwd=ROOT, check=True, capture_output=True
            )
        files = sorted(path.relative_to(again) for path in again.rglob('*.tfrecord'))
        there = sorted(path.relative_to(directory) for path in directory.glob('[jlp]*/**/*.tfrecord'))
        same, *_ = filecmp.cmpfiles(directory, again, map(str, files), shallow=False)
        episodes = EpisodeReader(Dataset([str(directory / 'joined')])).episodes()
        ids = [int(episode['policy_info.id'][0]) for episode in episodes]
        if files != there or len(same) != len(files) or len(set(ids)) != len(ids):
            raise RuntimeError(f'got other data sets, or a decision twice, in {directory}; need those of {again}')
        print(f'round {number}: {len(ids)} decisions, each once; the same data sets again', flush=True)


def overview(results: list[dict[str, list]]) -> dict[str, Any]:
    """Prints the regrets of all seeds by rounds; returns the paired differences."""
    curves = (np.array([each[name] for each in results]) for name in NAMES)
    # The means over the rounds come last.
    with_gate, without, frozen = (np.column_stack([each, each.mean(axis=1)]) for each in curves)
    print(f'| users of round | {" | ".join(NAMES.values())} | with less without |\n|---|---|---|---|---|')
    for i, name in enumerate([*range(2, 1 + with_gate.shape[1]), 'all']):
        difference = with_gate[:, i] - without[:, i]
        means = (each[:, i].mean() for each in (with_gate, without, frozen))
        interval = f'[{difference.min():+.4f}, {difference.max():+.4f}]'
        print(f'| {name} | {" | ".join(f"{mean:.4f}" for mean in means)} | {np.median(difference):+.4f} {interval} |')
    return {'differences': (with_gate - without).tolist()}


def plot(results: list[dict[str, list]], path: pathlib.Path) -> None:
    """Plots the regrets of all seeds."""
    figure, axes = plt.subplots(figsize=(7, 4), layout='constrained')
    for name, label in NAMES.items():
        curves = np.array([each[name] for each in results])
        rounds = np.arange(2, 2 + curves.shape[1])
        axes.plot(rounds, curves.mean(axis=0), marker='.', label=label)
        axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), alpha=0.2)
    axes.set(xlabel='round', ylabel='regret of a greedy session [reward]', xticks=rounds, ylim=0)
    axes.legend(title=f'mean and range of {len(results)} seed(s)')
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs the seeds that are missing, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--world', choices=['news', 'inlining'], default='news')
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--first_seed', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=10)
    parser.add_argument('--items', type=int, default=2_000, help='of the news page')
    parser.add_argument('--decisions', type=int, default=20_000, help='of a round, in requests of 100')
    parser.add_argument('--held_out', type=float, default=0.5, help='the share of new decisions for the gate')
    parser.add_argument('--held_out_rounds', type=int, default=1, help='in which what is held out judges')
    parser.add_argument('--arms', nargs='+', choices=['gated', 'always'], default=['gated', 'always'], help='that run')
    parser.add_argument('--kill', action='store_true', help='one run, with the gate, whose programs are killed')
    parser.add_argument('--quick', action='store_true', help='one seed of three rounds')
    parser.add_argument('--output', type=pathlib.Path, default=pathlib.Path('product_loop'), help='a directory')
    parser.add_argument('--picture', type=pathlib.Path, help='a PNG file')
    given = parser.parse_args()
    if given.quick or given.kill:
        given.seeds, given.rounds = 1, 3 if given.quick else given.rounds
    results = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        found: dict[str, list] = {}
        for arm in ('gated',) if given.kill else given.arms:
            folder = given.output.absolute() / f'{given.world}_{seed}_{arm}'
            kept = folder.with_suffix('.json')
            if not kept.exists() or given.kill:
                shutil.rmtree(folder, ignore_errors=True)
                its = run(folder, seed, given.held_out if arm == 'gated' else None, given)
                shutil.rmtree(folder)
                if given.kill:
                    print(f'{its["kills"][0]} kills; the data sets of all rounds are those of the same files again')
                    return
                kept.write_text(json.dumps(its))
            its = json.loads(kept.read_text())
            found |= {**(its if arm == 'gated' else {}), arm: its['served']}
        results.append(found)
    if len(given.arms) < 2:
        return
    differences = overview(results)
    if given.picture:
        plot(results, given.picture)
    command_line.write(given.json, {'seeds': results, **differences})


if __name__ == '__main__':
    main()
