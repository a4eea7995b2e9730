"""The commands of the documents, run to their ends, with few steps and episodes.

tflearn-launch is the program that users have, the others are forks; tests/packaging_test.py starts installed ones. They
run in one folder, as a user's. A command that needs a run or data comes after the command of the documents that makes
them. docs_code_test.py parses all commands, also those that are not run here.
"""

import contextlib
import fnmatch
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.end_to_end.programs import Addresses
from tests.testing import console_programs, docs_blocks, forks
from tests.testing.docs_blocks import BLOCKS, COMMANDS, DOCS, OURS, ROOT
from tflearn.core.waiting import is_listening, wait_until
from tflearn.environments import external_client
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address, free_port
from tflearn.learner import tpu_compiler

PROGRAMS = pathlib.Path(sys.executable).parent
DEADLINE_SECS = 240.0
# The columns of users and of their affinities to the 34 items.
OPEN_BANDIT = [f'user_feature_{i}' for i in range(4)] + [f'user-item_affinity_{i}' for i in range(34)]
NUM_STEPS = 40
FEW_STEPS = [
    f'train.StopConditions.num_train_steps={NUM_STEPS}',
    f'train.Intervals.export_interval_steps={NUM_STEPS}',
    f'train.Intervals.steps_per_call={NUM_STEPS // 2}',
    f'train.ExportOptions.update_interval_steps={NUM_STEPS // 2}',
    'evaluate.evaluate.target_return=None',
    'evaluate.evaluate.num_episodes=1',
]
EPOCH = 'StopConditions.num_train_steps', 'Intervals.export_interval_steps', 'Intervals.steps_per_call'
SEARCHES = ('seeds', 'tune', 'population')
TRAINING = ('launch', 'train', 'train_offline', 'synchronous', 'replay_server', 'collect', *SEARCHES)

# Commands that are parsed only, by a pattern of their page, line and words, and why.
NOT_RUN = {
    r'\.\.\.|^\S+ \S+( --(num_\w+|backend|side|format)=\S+)+$': 'flags for other commands',
    r'^CONTRIBUTING.md': 'the tests themselves, and what tests/architecture_test.py runs',
    r'^benchmarks.md|benchmarks[/.]': 'takes up to hours; tests/learning_test.py and tests/suite_test.py run parts',
    r'scripts/(test|lock|check_extras|sbom|release)|pip |-m venv': 'needs a registry; see tests/packaging_test.py',
    r' uv (venv|pip) ': 'needs uv and a package registry; see tests/clean_install_test.py',
    r'docker ': 'no Docker daemon runs where the tests run; tests/docker_test.py checks the files',
    r'in a container': 'in a container, the command of the page about serving',
    r'--backend=(slurm|ray)(?!.*--render)': 'needs the cluster; tests/launch has stand-ins',
    r's3://': 'needs a store; tests/files has one on this machine',
    r'=replay:|=feed:|=host0:|=trainer:': 'several machines; see tests/scripts/coordinator_test.py, tests/chaos',
    r'--to=wandb': 'needs packages; see tests/extensions/experiments/tracking_test.py',
    r'curl ': 'external_server_test.py of tests/environments/ and rest_test.py of serving run them; a status by hand',
    r'openssl |stunnel |runs/cartpole --gin_file=dqn_cartpole --(coord|replay)': 'see tests/replay/tunnel_test.py',
    r'tensorflow_model_server': 'TensorFlow Serving is in no Python package',
    r'saved_model_cli|g\+\+ |\./policy$': 'tests/policies/products_aot_test.py',
    r'runs/camera_arm': 'a run of Python objects, which tests/docs_code_test.py exports',
    r'cc -o walk': 'tests/docs_code_test.py compiles it',
    r'--format=(minari|rlds)|expert_rlds': 'needs the extras minari and rlds; tests/data/conversion_test.py',
    r'runs/(news|inlining)|simulated_product': 'loop_test.py, simulated_product_test.py of tests/extensions/product/',
    r'-m pytest': 'the tests of an algorithm that the reader adds; tests/docs_code_test.py trains it',
    r'-m tensorboard.main': "TensorBoard's own program",
    r'-m pstats': "Python's own; tests/runs/end_to_end_test.py makes such a file",
    r'=runs/ppo( |$)': 'a run of Python objects; see tests/api/training_test.py',
    r'--tls_certificate': 'needs certificates; tests/extensions/serving/server_tls_test.py',
}
# What is replaced in a command.
SMALLER = [
    (r'^--train_step=4300', f'--train_step={NUM_STEPS // 2}'),  # an update
    (r'^--train_step=7000', f'--train_step={NUM_STEPS}'),
    (r'^--episodes=\d+', '--episodes=60'),  # so that there are some for validation
    (r'^--min_return=\d+', '--min_return=5'),
    (r'num_train_steps=4_000', f'num_train_steps={2 * NUM_STEPS}'),
    (r'=/data/other_run', '=runs/dqn_cartpole'),
    (r'=/(runs|tmp)/', r'=\1/'),
    (r'^--seeds=\d+$', '--seeds=2'),
    (r'^--(trials|population|generations)=\d+$', r'--\1=2'),
    (r'^--num_collectors=2$', '--num_collectors=1'),  # two cores suffice
    (r'=train:cores=2', '=train:cores=1'),
]
SIMULATOR = f"""
import sys
sys.path[:0] = ['', {str(DOCS)!r}]
import external_simulator
external_simulator.main(sys.argv[1], 1_000_000)
"""
# Run by tests of their own.
TOGETHER = (
    r'articles|men[_.]|/men\b|data/shop|data/joined|runs/by_hand|--strategy=multi_worker|'
    r'dqn_external_cartpole|tflearn-serve|4_000'
)
FAST = r'quickstart$|tflearn synchronous|--format=tflite$|data/(expert|random) --ep|data/good'  # all others are slow


def _rest() -> Iterator[object]:
    """Yields the commands that run alone."""
    seen: list[Sequence[str]] = []
    for place, program, words in OURS:
        text = f'{place} {" ".join(words)}'
        if words[1:] in seen or any(re.search(pattern, text) for pattern in [TOGETHER, *NOT_RUN]):
            continue
        seen.append(words[1:])
        marks = [] if re.search(FAST, text) else [pytest.mark.slow]
        yield pytest.param(place, program, words, id=f'{place}-{program}', marks=marks)


def _flags(words: Sequence[str], name: str) -> list[str]:
    return [word.split('=', 1)[1] for word in words if word.startswith(f'--{name}=')]


def _made(program: str, words: Sequence[str]) -> list[str]:
    """Returns the run or the data that a command makes."""
    if program not in ('launch', 'train_offline', 'synchronous', *SEARCHES) or '--render' in words:
        return _flags(words, 'output')
    return _flags(words, 'root_dir') or [f'runs/{(_flags(words, "gin_file") or ["dqn_cartpole"])[0]}']


def _is_before(one: str, other: str) -> bool:
    """Returns whether one place is above the other one on a page."""
    page, line = other.split(':')
    return one.startswith(f'{page}:') and int(one.split(':')[1].split()[0]) < int(line.split()[0])


def _needed(place: str, program: str, words: Sequence[str]) -> list[str]:
    """Returns the runs and the data that a command reads."""
    read = _flags(words, 'data') + re.findall(r'Initial\.policy="(.*?)"', ' '.join(words))
    read += [] if program in TRAINING else _flags(words, 'root_dir')
    read += [word for word in words[1:] if program in ('compare', 'track') and not word.startswith('--')]
    before = [path for other, *command in OURS if _is_before(other, place) for path in _made(*command)]
    return [path for each in read for path in (fnmatch.filter(before, each) if '*' in each else [each])]


class User:
    """Runs commands in a folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        shutil.copytree(DOCS / 'articles', folder, dirs_exist_ok=True)
        for block in BLOCKS:
            if block.file_name:
                (folder / block.file_name).write_text(block.text, encoding='utf-8')

    @contextlib.contextmanager
    def running(
        self, program: str, words: Sequence[str], *more: str, **variables: str
    ) -> Iterator[subprocess.Popen | forks.Program]:
        """Starts a command, with few steps, as <program>.out; kills it if it has not ended."""
        arguments = [*words[1:], *more]
        for pattern, smaller in SMALLER:
            arguments = [re.sub(pattern, smaller, word) for word in arguments]
        if 'quickstart' in words[0]:  # tests/packaging_test.py runs the script itself
            arguments += [] if _flags(words, 'gin_file') else ['--gin_file=dqn_cartpole']
            arguments += [] if _flags(words, 'root_dir') else [f'--root_dir={_made(program, words)[0]}']
        # Evaluations that are a job of the run have the run's end too.
        if (program in TRAINING or (program == 'evaluate' and len(words) == 3)) and '--render' not in words:
            arguments += [f'--gin_bindings={item}' for item in FEW_STEPS if item.split('=')[0] not in str(arguments)]
        given = {'cwd': self.folder, 'env': {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1', **variables}}
        if program != 'launch':
            process = forks.start(*console_programs.words(program), *arguments, log=self.out(program), **given)
        else:
            with self.out(program).open('w') as out:
                command = [PROGRAMS / 'tflearn-launch', *arguments]
                process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **given)
        try:
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_SECS)

    def out(self, program: str) -> pathlib.Path:
        return self.folder / f'{program}.out'

    def run(self, place: str, program: str, words: Sequence[str], *more: str) -> str:
        """Runs a command to its end, and first of all those that make what it needs; returns what it printed."""
        self.make(_needed(place, program, words))
        with self.running(program, words, *more) as process:
            code = process.wait(DEADLINE_SECS)
        printed = self.out(program).read_text()
        assert code == 0 and 'Traceback' not in printed, f'{place}: {code}: {printed}'
        return printed

    def make(self, paths: Sequence[str]) -> None:
        """Runs the commands that make what is not there."""
        for path in paths:
            command = next((command for command in OURS if path in _made(*command[1:])), None)
            if command and not (self.folder / path).exists():
                self.run(*command)


@pytest.fixture(scope='module')
def user(tmp_path_factory) -> User:
    return User(tmp_path_factory.mktemp('user'))


@pytest.mark.parametrize(('place', 'program', 'words'), [*_rest()])
def test_a_command_runs_to_its_end(user, place, program, words):
    if any(word.startswith('--tpu=') for word in words) and tpu_compiler.VARIABLE not in os.environ:
        pytest.skip(f'needs {tpu_compiler.VARIABLE}')
    user.run(place, program, words)
    for path in _made(program, words):
        assert (user.folder / path.lstrip('/')).exists()


def _one(pattern: str) -> tuple[str, str, list[str]]:
    """Returns the command whose words match."""
    (command,) = [command for command in OURS if re.search(pattern, ' '.join(command[2]))]
    return command


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on(user):
    place, program, words = _one('num_train_steps=4_000')
    user.run(place, program, words, f'--gin_bindings=train.StopConditions.num_train_steps={NUM_STEPS}')
    user.run(place, program, words)
    run_dir = RunDir(user.folder / 'runs' / 'cartpole')
    assert [read_json(path)['train_step'] for path in (run_dir.done, run_dir.root / 'DONE-1')] == [80, 40]


@pytest.mark.slow
def test_a_server_serves_until_it_is_stopped(user):
    command = next(command for command in OURS if command[1] == 'serve' and 'runs/dqn_cartpole' in str(command))
    user.make(_needed(*command))
    port = free_port()
    with user.running(*command[1:], f'--port={port}', f'--rest_port={free_port()}') as server:
        wait_until(lambda: is_listening(f'localhost:{port}', 1.0), 'the server', DEADLINE_SECS)
        server.send_signal(signal.SIGINT)
        assert server.wait(DEADLINE_SECS) == 128 + signal.SIGINT


def test_two_files_become_a_served_policy_and_its_log_the_next_one(user):
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    own_log = subprocess.run(
        [sys.executable, 'own_log.py'],
        cwd=user.folder,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        timeout=DEADLINE_SECS,
    )
    assert own_log.returncode == 0 and (user.folder / 'data' / 'arrays').exists()
    lines, clicks = ['visit,shown_at,age,country,hour,member,item,p'], ['visit,at,clicked']
    for i in range(2_000):  # in Germany cups are clicked, in France pots
        country, item, at = ('de', 'fr')[i % 2], ('cup', 'pot', 'lid')[i % 3], 1_763_600_000 + 60 * i
        lines.append(f'v{i},{at},{i % 60 or ""},{country},{i % 24},{str(i % 5 == 0).lower()},{item},0.3333')
        clicks += [f'v{i},{at + 90},1'] if (country, item) in [('de', 'cup'), ('fr', 'pot')] else []
    (user.folder / 'decisions.csv').write_text('\n'.join(lines) + '\n')
    (user.folder / 'outcomes.csv').write_text('\n'.join(clicks) + '\n')
    found = [command for command in OURS if command[0].startswith('your-logs.md') and 'shop' in str(command)]
    programs = ['data', 'data', 'train_offline', 'evaluate', 'promote', 'serve', 'data', 'train_offline']
    assert [program for _, program, _ in found] == programs
    few = [f'--gin_bindings=train.{each}=2_000' for each in EPOCH[1:]]
    for place, program, words in found[:5]:
        printed = user.run(place, program, words, *(few if program == 'train_offline' else []))
    assert 'margin 0.05: passes' in printed
    port, rest_port, answers = free_port(), free_port(), []
    curls = [words for place, words in COMMANDS if place.startswith('your-logs.md') and words[0] == 'curl']

    def ask(words: Sequence[str]) -> bytes:
        given = [word.replace('8501', str(rest_port)) for word in words]
        return subprocess.run([*given, '-s'], capture_output=True, timeout=DEADLINE_SECS).stdout

    def answered() -> bool:
        """Asks again while the server, which listens already, loads the policy."""
        answers.append(ask(curls[0]))
        return b'predictions' in answers[-1]

    with user.running(*found[5][1:], f'--port={port}', f'--rest_port={rest_port}', '--epsilon=0') as process:
        wait_until(answered, lambda: f'an answer: {answers}', DEADLINE_SECS)
        assert json.loads(ask(curls[1])) == {'accepted': 1}
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_SECS)
    assert json.loads(answers[-1]) == {'predictions': [2], 'texts': {'action': ['pot']}}  # of cup, lid and pot
    for place, program, words in found[6:]:
        short = [f'--until={time.time()}', '--window_secs=0.1'] if program == 'data' else few
        user.run(place, program, words, *short)
    words = [read_json(user.folder / 'data' / name / 'vocabularies.json') for name in ('shop', 'shop_served')]
    assert words[0] == words[1] and words[0]['observation.hour'] == [str(hour) for hour in range(24)]
    policy = user.folder / 'runs' / 'shop_2' / 'policies' / 'greedy_policy' / '2000' / 'metadata.json'
    assert read_json(policy)['vocabularies'] == words[0]


@pytest.mark.slow  # the same programs as those of the shop
def test_open_bandits_files_become_a_served_policy(user):
    """Files with the columns of Open Bandit's data: two policies have logged, the item 3 is clicked most."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    rng = np.random.default_rng(0)
    for name, share in (('random', 0.0), ('bts', 0.5)):
        lines = [f',timestamp,item_id,position,click,propensity_score,{",".join(OPEN_BANDIT)}']
        for i in range(4_000):
            item = 3 if rng.random() < share else int(rng.integers(34))
            probability = share * (item == 3) + (1 - share) / 34
            click = int(rng.random() < (0.8 if item == 3 else 0.05))
            user_of = [f'{rng.integers(3)}a{k}' for k in range(4)] + [str(int(rng.integers(2)))] * 34
            at = f'2019-11-24 0{i // 3600}:{i // 60 % 60:02}:{i % 60:02}.442536+00:00'
            lines.append(f'{i},{at},{item},{1 + i % 3},{click},{probability},{",".join(user_of)}')
        (user.folder / f'men_{name}.csv').write_text('\n'.join(lines) + '\n')
    *commands, server = [command for command in OURS if 'runs/men' in str(command) or 'data/men' in str(command)]
    programs = ['data', 'data', 'data', 'train_offline', 'evaluate', 'promote']
    assert [program for _, program, _ in commands] == programs
    few = [f'--gin_bindings=train.{each}=2_000' for each in EPOCH[1:]]
    printed = [user.run(*command, *(few if command[1] == 'train_offline' else [])) for command in commands]
    assert 'steps: 4000' in printed[0] and 'unknown' not in printed[1]
    assert 'doubly robust' in printed[4] and 'margin 0.01: passes' in printed[5]
    port, answers = free_port(), []
    given = {'cwd': user.folder, 'env': {**os.environ, 'PYTHONPATH': str(ROOT)}, 'timeout': DEADLINE_SECS}

    def answered() -> bool:
        ask = [sys.executable, 'ask_men.py', f'localhost:{port}']
        answers.append(subprocess.run(ask, capture_output=True, text=True, **given))
        return answers[-1].returncode == 0

    with user.running(*server[1:], f'--port={port}'):
        wait_until(answered, lambda: f'an answer: {answers and answers[-1].stderr}', DEADLINE_SECS)
    item, version = answers[-1].stdout.split()
    assert 0 <= int(item) < 34 and version == '2000'


def test_a_file_of_vowpal_wabbit_becomes_a_served_policy(user):
    """And what the server decides becomes data again."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    given = {'cwd': user.folder, 'env': {**os.environ, 'PYTHONPATH': str(ROOT)}, 'timeout': DEADLINE_SECS}
    assert subprocess.run([sys.executable, 'articles.py'], **given).returncode == 0
    *commands, server, join = [command for command in OURS if 'articles' in str(command)]
    assert [program for _, program, _ in commands] == ['data', 'data', 'train_offline', 'evaluate', 'promote']
    epoch = [f'--gin_bindings=train.{each}=1_000' for each in EPOCH]
    for place, program, words in commands:
        printed = user.run(place, program, words, *(epoch if program == 'train_offline' else []))
        assert 'had no effect' not in printed, 'of a packaged file'
    assert 'margin 0: passes' in printed
    port, answers = free_port(), []

    def answered() -> bool:
        ask = [sys.executable, 'ask_articles.py', f'localhost:{port}']
        answers.append(subprocess.run(ask, capture_output=True, text=True, **given))
        return answers[-1].returncode == 0

    with user.running(*server[1:], f'--port={port}') as process:
        wait_until(answered, lambda: f'an answer: {answers and answers[-1].stderr}', DEADLINE_SECS)
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_SECS)
    article, version = answers[-1].stdout.split()
    assert article in ('food', 'sports', 'politics') and version == '225'
    (log,) = (user.folder / 'articles_log').glob('decisions-*.jsonl')
    decision = json.loads(log.read_text())
    click = {'event_id': decision['id'], 'time': decision['time'], 'reward': 1}
    (user.folder / 'clicks.jsonl').write_text(json.dumps(click) + '\n')
    assert 'steps: 1' in user.run(*join, f'--until={time.time()}', '--window_secs=0.1')


@pytest.mark.slow  # tests/runs/end_to_end_test.py starts the same jobs
def test_jobs_by_hand(user):
    by_hand = [(program, words) for place, program, words in OURS if 'runs/by_hand' in str(words)]
    assert [program for program, _ in by_hand] == ['replay_server', 'collect', 'train', 'evaluate']
    addresses = Addresses()
    with contextlib.ExitStack() as programs:
        server, *jobs = [
            programs.enter_context(user.running(*job, *([] if job[0] == 'evaluate' else addresses.flags(job[0]))))
            for job in by_hand
        ]
        for job in jobs:
            assert job.wait(DEADLINE_SECS) == 0
        server.send_signal(signal.SIGINT)
        assert server.wait(DEADLINE_SECS) == 128 + signal.SIGINT
    assert read_json(RunDir(user.folder / 'runs' / 'by_hand').done)['train_step'] == NUM_STEPS


@pytest.mark.slow
def test_workers_train_from_the_same_files(user):
    place, program, words = _one('runs/of_two.*--strategy=multi_worker')
    user.make(_needed(place, program, words))
    (text,) = [line for block in docs_blocks.of('bash') for line in block.text.splitlines() if 'localhost:2222' in line]
    variable = json.loads(re.search(r"TF_CONFIG='(.*)'", text)[1])
    variable['cluster']['worker'] = [free_address(), free_address()]
    with contextlib.ExitStack() as programs:
        workers = []
        for i in range(2):
            variable['task']['index'] = i
            workers.append(programs.enter_context(user.running(program, words, TF_CONFIG=json.dumps(variable))))
        for worker in workers:
            assert worker.wait(DEADLINE_SECS) == 0, user.out(program).read_text()
    assert RunDir(user.folder / 'runs' / 'of_two').train_result.exists()


@pytest.mark.slow
def test_simulators_train_a_run(user):
    port = free_port()
    shutil.copy(external_client.__file__, user.folder / 'client.py')
    _, program, words = _one('--gin_file=dqn_external_cartpole')
    with user.running(program, words, f'--gin_bindings=external_server.ExternalOptions.ports=({port},)') as launch:
        found = lambda: is_listening(f'localhost:{port}', 1.0) or launch.poll() is not None  # noqa: E731
        wait_until(found, 'the collector', DEADLINE_SECS)
        assert launch.poll() is None, user.out(program).read_text()
        simulator = [sys.executable, '-I', '-S', '-c', SIMULATOR, f'http://localhost:{port}']
        with subprocess.Popen(simulator, cwd=user.folder) as process:
            try:
                assert launch.wait(DEADLINE_SECS) == 0, user.out(program).read_text()
                assert process.wait(DEADLINE_SECS) == 0
            finally:
                process.kill()
    assert read_json(RunDir(user.folder / 'runs' / 'external').done)['train_step'] >= NUM_STEPS


def test_each_command_is_run_or_has_a_reason():
    run = [str(case.values[2][1:]) for case in _rest()]
    texts = [f'{place} {" ".join(words)}' for place, words in COMMANDS]
    for pattern, reason in NOT_RUN.items():
        assert any(re.search(pattern, text) for text in texts), pattern
        assert all((ROOT / path).exists() for path in re.findall(r'tests/[\w/.]+\b', reason)), reason
    for (_, words), text in zip(COMMANDS, texts, strict=True):
        assert str(words[1:]) in run or any(re.search(pattern, text) for pattern in [TOGETHER, *NOT_RUN]), text
