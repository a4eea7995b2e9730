"""Does the product loop keep up with a world that changes, and does its data survive kills?

    python benchmarks/product_loop.py --seeds=5 --output=results

A simulated product asks tflearn-serve for one of 10 candidates of 2,000 items, by gRPC, and logs what came of it. What
is known of its users comes to mean another taste, by 0.15 radians in each round (`recommender.turned`). After each
round of 20,000 decisions tflearn loop joins, splits, trains, judges and promotes. Compared are the greedy policies that
served, by their regret with the users of their round: with the gate; without it; and the policy of the first round,
which was trained on random decisions. Each loop is kept, and not run again. `--kill` kills the server, the loop and
its programs at random moments, and compares the data sets with those that are made again from the same files.
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
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import command_line  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.data.reader import Dataset, EpisodeReader  # noqa: E402
from tflearn.extensions.serving.client import PolicyClient  # noqa: E402
from tflearn.extensions.tasks import recommender  # noqa: E402
from tflearn.files.run_dir import read_json  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402
from tflearn.policies import versions  # noqa: E402

ITEMS = recommender.embeddings()
CANDIDATES, ROWS, WINDOW_SECS, EPSILON, DRIFT = 10, 100, 1.0, 0.3, 0.15
SETTLE_SECS = 0.1
DEADLINE_SECS, MEAN_SECS_BETWEEN_KILLS = 900.0, 10.0
COLUMNS = """
action = {kind = 'integer', high = 1999}
reward_range = [-1.5, 1.5]  # items and tastes have the length 1, and five deviations of the noise

[observation]
user = {column = 'observation_user', length = 16}
candidates = {kind = 'mask', column = 'mask'}
"""
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
loop.Training.gin_file = 'dqn_news'
loop.Training.gin_bindings = [
    'train.Initial.seed = {seed}', 'train.StopConditions.num_train_steps = 500',
    'train.ExportOptions.policies = ("greedy_policy",)']
loop.loop.serving = '{folder}/serving'
loop.loop.gate = {gate}
loop.loop.schedule = @loop.Schedule()
loop.Schedule.decisions = {decisions}
loop.Schedule.poll_secs = 0.5
"""
GATE = """@loop.Gate()
loop.Gate.epsilon = {epsilon}
loop.Gate.held_out = {held_out}
loop.Gate.margin = 0.05"""
NAMES = {'gated': 'with the gate', 'always': 'without the gate', 'frozen': 'the first policy'}


class Product:
    """One product: its users, its server, its loop."""

    def __init__(self, folder: pathlib.Path, seed: int, decisions: int, held_out: float | None, logged: int):
        """Writes what the programs need, and the log of random decisions that was there before.

        Args:
          held_out: the share of new decisions that the gate holds out; None is no gate.
          logged: decisions in the log with which a round is due.
        """
        self.folder, self.decisions, self._random = folder, decisions, np.random.default_rng(seed)
        self.port, self.kills = free_port(), 0
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        for name in ('decisions', 'outcomes', 'serving'):
            (folder / name).mkdir(parents=True)
        (folder / 'columns.toml').write_text(COLUMNS)
        gate = GATE.format(epsilon=EPSILON, held_out=held_out) if held_out else 'None'
        given = {'folder': folder, 'window': WINDOW_SECS, 'settle': SETTLE_SECS, 'seed': seed}
        (folder / 'loop.gin').write_text(LOOP.format(gate=gate, decisions=logged, **given))

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

    def users(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns tastes [N, 16] and candidates [N, 10]."""
        tastes = self._random.normal(size=(count, ITEMS.shape[1]))
        tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
        drawn = [self._random.random((min(ROWS, count - i), len(ITEMS))) for i in range(0, count, ROWS)]
        return tastes, np.concatenate([np.sort(np.argsort(each, axis=1)[:, :CANDIDATES]) for each in drawn])

    def outcomes(self, name: str, ids: list[str], tastes: np.ndarray, actions: np.ndarray, at: float) -> None:
        """Writes what came of some decisions, in a file that appears whole."""
        rewards = (ITEMS[actions] * tastes).sum(axis=1) + 0.1 * self._random.normal(size=len(ids))
        rows = [{'event_id': i, 'time': at, 'reward': r} for i, r in zip(ids, rewards.tolist(), strict=True)]
        path = self.folder / 'outcomes' / f'outcomes-{name}.jsonl'
        path.with_suffix('.begun').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        path.with_suffix('.begun').rename(path)

    def random_decisions(self) -> None:
        """Writes the log of the system before: random decisions."""
        count, lines = 2 * self.decisions, []
        tastes, candidates = self.users(count)
        actions = candidates[np.arange(count), self._random.integers(0, CANDIDATES, count)]
        before = time.time() - 2 * WINDOW_SECS
        for i in range(count):
            at = before if i < count - 1 else time.time()  # the last one ends the log, and is left out
            line = {'id': f'before-{i}', 'time': at, 'action': int(actions[i]), 'probability': 1 / CANDIDATES}
            line |= {'observation_user': tastes[i].round(5).tolist(), 'mask': candidates[i].tolist()}
            lines.append(json.dumps(line) + '\n')
        before_last = self.folder / 'decisions' / 'decisions-0.jsonl'
        self.outcomes('0', [f'before-{i}' for i in range(count)], tastes, actions, before)
        (self.folder / 'outcomes' / 'outcomes-end.jsonl').write_text(
            json.dumps({'event_id': 'none', 'time': time.time(), 'reward': 0.0}) + '\n'
        )
        before_last.with_suffix('.begun').write_text(''.join(lines))
        before_last.with_suffix('.begun').rename(before_last)

    def traffic(self, number: int) -> None:
        """Asks for the decisions of a round; the last request comes when the windows of the others are closed."""
        for k in range(self.decisions // ROWS):
            if k == self.decisions // ROWS - 1:
                threading.Event().wait(1.2 * WINDOW_SECS)
            tastes, candidates = self.users(ROWS)
            mask = np.zeros((ROWS, len(ITEMS)), np.int8)
            np.put_along_axis(mask, candidates, 1, axis=1)
            name = f'{number}-{k}'
            actions = self._ask(name, recommender.turned(tastes, DRIFT * (number - 1)).astype(np.float32), mask)
            self.outcomes(name, [f'{name}-{i}' for i in range(ROWS)], tastes, actions, time.time())

    def _ask(self, event_id: str, user: np.ndarray, mask: np.ndarray) -> np.ndarray:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = 'greedy_policy'
        for name, value in (('observation_user', user), ('observation_candidates', mask)):
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))

        def answer() -> tuple[np.ndarray] | None:  # again, under the same id, if the server was killed
            with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(f'localhost:{self.port}') as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                return (tf.make_ndarray(stub.Predict(request, 60.0, [('event-id', event_id)]).outputs['action']),)

        return wait_until(answer, 'an answer', DEADLINE_SECS)[0]

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


def regret(version: pathlib.Path, number: int) -> float:
    """Returns how much less the greedy action of a policy earns than the best, with the users of a round."""
    users = np.random.default_rng(12345 + number)
    tastes = users.normal(size=(2_000, ITEMS.shape[1]))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    candidates = np.argsort(users.random((len(tastes), len(ITEMS))), axis=1)[:, :CANDIDATES]
    mask = np.zeros((len(tastes), len(ITEMS)), np.int8)
    np.put_along_axis(mask, candidates, 1, axis=1)
    shown = recommender.turned(tastes, DRIFT * (number - 1)).astype(np.float32)
    ask = tf.saved_model.load(str(version)).signatures['serving_default']
    actions = ask(observation_user=tf.constant(shown), observation_candidates=tf.constant(mask))['action'].numpy()
    best = (ITEMS[candidates] * tastes[:, np.newaxis]).sum(axis=2).max(axis=1)
    return float((best - (ITEMS[actions] * tastes).sum(axis=1)).mean())


def run(folder: pathlib.Path, seed: int, held_out: float | None, given: argparse.Namespace) -> dict[str, list]:
    """Runs the rounds of one product; returns the regrets of each round, from the second on."""
    # A killed server loses the decisions of its last second.
    product = Product(folder, seed, given.decisions, held_out, given.decisions * (3 if given.kill else 4) // 4)
    found: dict[str, list] = {'served': [], 'frozen': [], 'promoted': []}
    product.random_decisions()
    with product.running(given.kill):
        for number in range(1, given.rounds + 1):
            if number > 1:
                product.traffic(number)
            result = wait_until(lambda n=number: product.result(n), f'round {number}', DEADLINE_SECS)
            if number > 1 and not given.kill:
                product.forget(number - 1)  # a round reads what is new, and what was new in the round before
            found['promoted'].append(result['promoted'])
            if not found['promoted'][0]:
                raise RuntimeError(f'got a first policy that was refused: {result["gate"]["reasons"]}')
            if number < given.rounds:
                found['served'].append(regret(product.version(), number + 1))
                found['frozen'].append(regret(product.version(1), number + 1))
                wait_until(product.follows, 'the new version at the server', DEADLINE_SECS)
            print(
                time.strftime('%T'),
                folder.name,
                number,
                *(f'{k} {v[-1]:.3f}' for k, v in found.items() if v),
                flush=True,
            )
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
                commands.append([*split, *earlier])
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


def plot(results: list[dict[str, list]], path: pathlib.Path) -> None:
    """Plots the regrets of all seeds."""
    figure, axes = plt.subplots(figsize=(7, 4), layout='constrained')
    for name, label in NAMES.items():
        curves = np.array([each[name] for each in results])
        rounds = np.arange(2, 2 + curves.shape[1])
        axes.plot(rounds, curves.mean(axis=0), marker='.', label=label)
        axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), alpha=0.2)
    axes.set(xlabel='round', ylabel='regret of a greedy decision [reward]', xticks=rounds, ylim=0)
    axes.legend(title=f'mean and range of {len(results)} seed(s)')
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs the seeds that are missing, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--first_seed', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=10)
    parser.add_argument('--decisions', type=int, default=20_000, help='of a round, in requests of 100')
    parser.add_argument('--held_out', type=float, default=0.5, help='the share of new decisions for the gate')
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
        for arm in ('gated',) if given.kill else ('gated', 'always'):
            folder = given.output.absolute() / f'seed_{seed}_{arm}'
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
    last = {name: [each[name][-1] for each in results] for name in NAMES}
    for name, values in last.items():
        print(f'{NAMES[name]:18} regret in the last round {statistics.mean(values):.4f}', *(f'{v:.4f}' for v in values))
    if given.picture:
        plot(results, given.picture)
    command_line.write(given.json, {'last_round': last, 'seeds': results})


if __name__ == '__main__':
    main()
