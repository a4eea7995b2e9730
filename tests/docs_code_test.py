"""Every block of code in the documents: Python and complete gin files run, other gin is read, commands are parsed."""

import contextlib
import functools
import importlib.util
import json
import pathlib
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tests.data import data_sets
from tests.testing import docs_blocks, served_policies
from tests.testing.docs_blocks import BEFORE, BLOCKS, COMMANDS, DOCS, GREEDY, JOBS, OURS, PAGES, REPLACED, ROOT
from tflearn.config import files, job_config
from tflearn.environments import external_client, gymnasium_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.launch.local import free_port
from tools import algorithm_pages

ALGORITHMS = DOCS / 'algorithms'
FAST = ('iql',)  # algorithms whose Python is no slow test
# py: what needs other libraries, and does not run here. c, cpp, ini, yaml: tests of their own.
LANGUAGES = {'bash', 'gin', 'py', 'python', 'text', 'toml', 'c', 'cpp', 'ini', 'yaml'}
# Executed after a page's Python.
AFTER = {
    # One iteration of PPO's own experience: 8 environments with 128 steps each; the second does not become whole.
    'README.md': 'assert action.numpy() in (0, 1) and run.train_step == 160 and 1_024 < run.env_steps <= 1_100 + 8',
    'distributed.md': 'watchdog.close()\nassert learner.step >= 1000',
    'exporting.md': "assert actions.numpy() in (0, 1) and step['action'] == actions\nassert action == of_lite",
    'external-simulators.md': """
assert 1_200 <= run.env_steps and run.train_step > 0
assert arm_run.env_steps >= 60 and arm_run.train_step > 0
program = Program()
answers = [program.reset()[0].tolist(), *(program.step(1) for _ in range(5))]
assert answers[0] == [0] and answers[1][0].tolist() == [1] and answers[5][1:4] == (1.0, True, False)
program.reset()
assert [program.step(step % 2)[2:4] for step in range(50)][-2:] == [(False, False), (False, True)]
program.close()
assert program._program.returncode is not None
import pathlib
bridge = pathlib.Path('program.py').read_text().partition('class ')[2]
assert len([line for line in bridge.splitlines() if line.strip()]) <= 16, 'a class of 15 lines'
""",
    'external-simulators.md#A camera, numbers and a memory': """
assert camera_run.env_steps >= 180 and camera_run.train_step > 0
assert step == 9 and any(np.any(state) for state in states.values()), 'a state that follows from the steps'
""",
    'from-circuit-training.md': 'assert run.train_step == 2 and 4 <= len(positions) <= 8',
    'from-alf.md': 'assert run.train_step == 20',
    'from-rllib.md': 'assert run.train_step == 2',
    'from-sb3.md': "assert action in (0, 1) and run.reason == 'learner.stop: it balances'",
    'from-tf-agents.md': 'assert ppo_learner.PPOLearner and learner.Learner',
    'index.md': 'assert actions.numpy() in (0, 1)',
    'python.md': """
assert run.reason == 'num_train_steps 1000 reached' and run.best_return == 16.5, 'always to the right'
assert (action, actions.tolist()) == (1, [1, 1])
assert statistics.returns == (16.5,) * 50
""",
    'python.md#The Learner as a library': """
assert result.loss > 0
served = tf.saved_model.load('runs/classifier/model').signatures['serving_default']
found = np.argmax(served(x=tf.constant(x[512:]))['y'], axis=1)
assert np.mean(found == y[512:]) > 0.8 and supervised.step <= 320
assert abs(classifier.loss(Examples(x[512:], y[512:])).loss - validator.best_loss) < 1e-4
assert len(rounds) == 15 and rounds[-1].mean_return > rounds[0].mean_return
""",
    'recommenders.md': """
assert run.train_step == 20
assert visit.observation['candidates'][0, policy(visit.observation)[0]], 'the item is a candidate'
""",
    'seeds.md': """
assert [len(its.names) for its in comparison.groups] == [2, 2] and pathlib.Path('rates.png').exists()
from optuna import trial
bound = suggest(trial.FixedTrial({'steps': 8, 'rate': 1e-3}))
assert bound[0] == 'experience.Slicing.sequence_length = 9' and len(bound) == 3
""",
    'serving.md': """
assert tf.make_ndarray(answer.outputs["action"]) in (0, 1) and decision.version == answer.model_spec.version.value
""",
    'your-data.md': """
assert own_loss(tf.ones(2), tf.zeros(2)).numpy().tolist() == [1, 1]
import tflearn
from tflearn.core import experience
from tflearn.environments import gymnasium_env
run = tflearn.train(
    root_dir='transformed',
    make_environment=functools.partial(gymnasium_env.make, 'CartPole-v1'),
    make_agent=make_agent,
    experience=experience.Experience(replay=experience.Uniform(min_size=100)),
    num_train_steps=20,
    num_episodes=1,
    exports=few,
)
assert run.train_step == 20
specs = tflearn.EnvironmentSpecs(tf.TensorSpec((2,), tf.float32), tf.TensorSpec((), tf.int64))
transform = Logarithm()
assert transform.transform_specs(specs).observation.shape == (2,)
assert tf.reduce_all(transform.transform_observation(tf.exp([1.0, 2.0]) - 1.0) == [1.0, 2.0])
""",
    'watching.md': "assert track({'kind': 'metric', 'name': 'evaluation/return', 'step': 1, 'value': 2.0}) is None",
    'where.md': 'assert action in (0, 1)',
    'your-environment.md': """
course = Course(gymnasium.make('CartPole-v1'))
course.set_progress(0, 50_000)
assert course.unwrapped.difficulty == 0.5
import tflearn
import walk
found = tflearn.check_environment(walk.Walk, secs=0)
assert {each.check: each.text for each in found}['reward'].startswith('0 to 1'), found
import types
import numpy as np
import own_episodes
assert own_episodes.on_episode(types.SimpleNamespace(reward=np.array([1.0, 3.0]))) == {'largest_reward': 3.0}
""",
    'your-network.md': """
from tf_agents.specs import tensor_spec
from tflearn.core import train_step, types
observation = {'size': tf.TensorSpec((), tf.float32), 'robot': {'arm': tf.TensorSpec((3,), tf.float32)}}
specs = types.EnvironmentSpecs(observation, tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1))
agent = make_agent(specs, train_step.create_train_step(), dqn.EXPERIENCE)
assert [32 + 16, 100] in [variable.shape.as_list() for variable in agent.policy.variables()]
agent = make_own_agent(specs, train_step.create_train_step(), dqn.EXPERIENCE)
assert [4, 64] in [variable.shape.as_list() for variable in agent.policy.variables()]
agent = make_joint_agent(specs, train_step.create_train_step(), ppo.EXPERIENCE)
assert [list(each.shape) for each in agent._network.trainable_variables[::2]] == [[4, 64], [64, 2], [64, 1]]
import dataclasses
specs = types.EnvironmentSpecs(tf.TensorSpec((3,), tf.float32), tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1))
from tflearn.agents import impala
slicing = dataclasses.replace(impala.EXPERIENCE.slicing, store_policy_state=True)
experience = dataclasses.replace(impala.EXPERIENCE, slicing=slicing)
network = NetworkOptions(make_network=make_memory)
agent = impala.make_agent(specs, train_step.create_train_step(), experience, network=network)
assert [each.shape for each in tf.nest.flatten(agent.collect_policy.policy_state_spec)] == [(64,), (64,)]
specs = types.EnvironmentSpecs(tf.TensorSpec((3,), tf.float32), tensor_spec.BoundedTensorSpec((2,), tf.float32, 0, 5))
agent = make_laplace_agent(specs, train_step.create_train_step(), ppo.EXPERIENCE)
assert agent.collect_data_spec.policy_info['dist_params']['numbers'].shape == (4,)
""",
    'your-algorithm.md': f"""
import tflearn
import own_hooks
from tests.testing import written_summaries
few = ['train.StopConditions.num_train_steps = 100', 'evaluate.evaluate.num_episodes = 1', {GREEDY!r}]
run = tflearn.train('own_hooks.gin', mode='synchronous', gin_bindings=few)
assert run.train_step == 100 and c51_run.train_step == own_run.train_step == 20
shares = written_summaries.scalars(own_run.run_dir.summaries('train'))['train/extra/own/to_the_right'].values()
assert all(0.3 < share < 0.7 for share in shares)
assert [len(each.names) for each in comparison.groups] == [1, 1]
scalars = written_summaries.scalars(run.run_dir.summaries('train'))
assert [step // 50 for step in scalars['train/own/weights']] == [1, 2] and own_hooks.num_steps.numpy() == 100
""",
}
# The run whose bindings a page's gin blocks change; blocks that include files are complete themselves.
GIN_RUNS = {'your-network.md': 'impala_cartpole'}

# Complete gin files that are not run by test_a_complete_gin_block_runs_to_its_end, and why.
NOT_RUN = {
    'own_task.gin': "the page's Python runs it",
    'camera_arm.gin': 'in real time; the same in Python runs',
    'own_hooks.gin': "the page's Python runs it",
    'transformed_pong.gin': 'needs the games of the extra atari',
}
SLOW = ('data/expert', 'Queue', 'dqn_rnd', 'Hindsight')  # several processes; or what tests/transforms trains, too
FEW_STEPS = [
    'train.StopConditions.num_train_steps = 20',
    'train.Intervals.export_interval_steps = 20',
    'evaluate.evaluate.target_return = None',
    'evaluate.evaluate.num_episodes = 1',
    GREEDY,
]
PRETRAIN_STEPS = ('train.Demonstrations.num_pretrain_steps', 'train.Cloning.num_train_steps')


def test_every_block_has_a_language():
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []
    assert len(BLOCKS) > 40
    for page in PAGES:  # Nor is there code by indentation, which has none.
        assert not re.search(r'^\n {4,}\S', re.sub(r'(?ms)^```.*?^```$', '', docs_blocks.text_of(page)), re.M), page


def _execute(name: str, **given) -> None:
    """Executes the Python of a page, one block after the other, as one program in the working directory."""
    blocks = docs_blocks.of_program(name, AFTER)
    for block in blocks:
        if block.file_name:
            pathlib.Path(block.file_name).write_text(block.text, encoding='utf-8')
    programs = [block for block in blocks if block.language == 'python' and not block.file_name]
    texts = {str(block): block.text for block in programs}
    for old, new in REPLACED.get(name, ()):
        assert any(old in text for text in texts.values()), old
        texts = {place: text.replace(old, new) for place, text in texts.items()}
    names = {'__name__': '__main__', 'few': ExportOptions(('greedy_policy',)), **given}
    for place, text in {'before': BEFORE.get(name, ''), **texts, 'after': AFTER[name]}.items():
        exec(compile(text, place, 'exec'), names)


@pytest.fixture(scope='module')
def user(tmp_path_factory) -> Iterator[pathlib.Path]:
    """A folder with the runs of python.md, which is also executed."""
    folder = tmp_path_factory.mktemp('user')
    with docs_blocks.working_in(folder):
        _execute('python.md')
        yield folder


@pytest.fixture
def server(user) -> Iterator[str]:
    """The address of a server of the run's policies."""
    with served_policies.serving(user / 'runs' / 'dqn_cartpole' / 'policies') as (policies, _):
        yield f'localhost:{policies.port}'


def test_from_python(user):
    assert RunDir(user / 'runs' / 'dqn_cartpole').train_result.exists()
    (program,) = [
        block for block in docs_blocks.of('python') if 'class Corridor' in block.text and block.page.name == 'python.md'
    ]
    lines = [line for line in program.text.splitlines() if not re.match(r'\s*(import |from |"""|$)', line)]
    assert len(lines) < 30


SLOW_PROGRAMS = {'external-simulators.md#A camera, numbers and a memory'}  # an LSTM behind convolutions is traced
PROGRAMS = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PROGRAMS else [], id=page)
    for page in sorted(AFTER.keys() - {'python.md', 'serving.md'})  # which have tests of their own
]


@pytest.mark.parametrize('page', PROGRAMS)
def test_python(user, page):
    _execute(page)


@pytest.mark.parametrize(
    'section',
    [
        pytest.param(each, marks=[] if each.name in FAST else pytest.mark.slow, id=each.name)
        for each in algorithm_pages.sections()
    ],
)
def test_python_of_an_algorithm(section, tmp_path):
    (program,) = re.findall(r'^```python\n(.*?)^```$', section.python + '\n', re.MULTILINE | re.DOTALL)
    few = 'exports=few, num_train_steps=2'
    text, num = re.subn(r'(num_train_steps=|max_env_steps=)[\d_]+(?=,)', f'num_episodes=1, {few}', program)
    text = text.replace('num_episodes=200,', '')
    if offline := re.search(r"Dataset\(\['(.*)'\]\)", text):
        name = 'CartPole-v1' if 'cartpole' in offline[1] else 'Pendulum-v1'
        data_sets.write(tmp_path / offline[1], 500, gymnasium_env.make(name, 2, 1))
        text, num = re.subn(r'num_train_steps=5_000\),', 'num_train_steps=2), exports=few,', text)
    assert num == 1
    with docs_blocks.working_in(tmp_path):
        exec(compile(text, section.link, 'exec'), names := {'few': ExportOptions(('greedy_policy',))})
    assert names['policy'].train_step == 2 if offline else names['run'].train_step >= 2


def test_python_of_a_client(user, server, monkeypatch):
    monkeypatch.setitem(REPLACED, 'serving.md', [("'localhost:8500'", repr(server))])
    _execute('serving.md')


def test_no_page_is_left_out():
    # extensions/games/turn_game_test.py, docs_programs_test.py
    elsewhere = {'several-agents.md', 'your-logs.md'}
    found = {block.page.name for block in docs_blocks.of('python') if block.page.parent != ALGORITHMS}
    assert found == elsewhere | {name.partition('#')[0] for name in AFTER}


def test_the_library_example(tmp_path, capsys):
    text = (DOCS / 'library_example.py').read_text(encoding='utf-8')
    for run in (1, 2):
        with docs_blocks.working_in(tmp_path):
            runpy.run_path(str(DOCS / 'library_example.py'))
        out = capsys.readouterr().out
        losses = [float(loss) for loss in re.findall(r'loss (\S+)', out)]
        assert len(losses) == 3 and f'train step {300 * run}' in out
        assert run == 2 or losses[-1] < losses[0] / 2
    assert not re.search(r'^(import|from) (gin|reverb|tflearn\.jobs)', text, re.MULTILINE)
    assert len([line for line in text.splitlines() if line.strip()]) <= 35


def test_the_rounds_of_a_compiler(tmp_path):
    with docs_blocks.working_in(tmp_path):
        rounds = runpy.run_path(str(DOCS / 'inlining_rounds.py'))['rounds']
    assert [done.num_steps for done in rounds] == [32 * 12] * 2


def _write_run(block: docs_blocks.Block, folder: pathlib.Path) -> pathlib.Path:
    """Writes a gin file of the block, which may leave out imports, and of the run that it changes or includes."""
    modules = {path.stem: path.relative_to(ROOT).with_suffix('') for path in (ROOT / 'tflearn').rglob('*.py')}
    used = {name for name in re.findall(r'(?:^|[@/(])(\w+)\.\w+', block.text, re.MULTILINE) if name in modules}
    text, header = block.text, 'from __gin__ import dynamic_registration'
    if header not in text:
        imports = [' import '.join(str(modules[name]).replace('/', '.').rsplit('.', 1)) for name in sorted(used)]
        text = '\n'.join([header, *(f'from {line}' for line in imports), text])
    for other in BLOCKS:
        if other.page == block.page and other.file_name:
            (folder / other.file_name).write_text(other.text, encoding='utf-8')
    (folder / 'block.gin').write_text(text, encoding='utf-8')
    run = '' if 'include ' in text else f"include '{GIN_RUNS.get(block.page.name, 'dqn_cartpole')}.gin'\n"
    (folder / 'run.gin').write_text(f"{header}\n{run}include 'block.gin'\n", encoding='utf-8')
    return folder / 'run.gin'


@pytest.mark.parametrize('block', docs_blocks.of('gin'), ids=str)
def test_gin(block, tmp_path):
    with docs_blocks.working_in(tmp_path):
        job_config.check(_write_run(block, tmp_path), [], JOBS)


def _complete() -> Iterator[object]:
    """Yields the gin blocks that are a run's whole file; those that take long are marked as slow."""
    for block in docs_blocks.of('gin'):
        if 'include ' in block.text and block.file_name not in NOT_RUN:
            slow = any(text in block.text for text in SLOW)
            yield pytest.param(block, marks=[pytest.mark.slow] if slow else [], id=str(block))


@pytest.mark.parametrize('block', [*_complete()])
def test_a_complete_gin_block_runs_to_its_end(block, tmp_path):
    bindings = [*FEW_STEPS]
    in_processes = 'Queue' in block.text or 'ppo' in block.text
    if not in_processes:
        bindings.append('experience.Uniform.min_size = 100')
    bindings += [f'{name} = 5' for name in PRETRAIN_STEPS if f'{name} =' in block.text]
    with docs_blocks.working_in(tmp_path):
        if 'data/expert' in block.text:
            data_sets.write(tmp_path / 'data' / 'expert', 100, gymnasium_env.make('CartPole-v1', 2, 1))
        mode = 'processes' if in_processes else 'synchronous'
        run = tflearn.train(_write_run(block, tmp_path), root_dir='run', mode=mode, gin_bindings=bindings)
    assert run.train_step >= 20 and run.evaluations[-1]['num_episodes'] == 1


def _simulate(port: int, stop: threading.Event) -> None:
    """Plays episodes of five steps with the observations that external-simulators.md describes, as a simulator."""
    observation = {'camera': np.full((84, 84, 1), 7).tolist(), 'speed': [0.5, -0.5]}
    while not stop.is_set():
        client = external_client.SimulatorClient(f'http://localhost:{port}', 30.0)
        # Nobody listens yet, or any more.
        with contextlib.closing(client), contextlib.suppress(OSError, RuntimeError, LookupError):
            assert client.begin(observation) in range(5)
            for step in range(5):
                client.step(1.0, observation, terminated=step == 4)
        stop.wait(0.01)


@pytest.mark.slow  # tests/external has simulators that play with a collector
def test_simulators_train_a_run_of_external_simulators(tmp_path):
    block = next(block for block in docs_blocks.of('gin') if block.page.name == 'external-simulators.md')
    ports, stop = (free_port(), free_port()), threading.Event()  # of the collector and of the evaluation
    here = ("external_server.ExternalOptions.host = 'localhost'", f'external_server.ExternalOptions.ports = {ports}')
    simulators = [threading.Thread(target=_simulate, args=(port, stop), daemon=True) for port in ports]
    for simulator in simulators:
        simulator.start()
    try:
        with docs_blocks.working_in(tmp_path):
            bindings = [*FEW_STEPS, *here, 'experience.Uniform.min_size = 20', 'experience.Uniform.max_size = 500']
            file = _write_run(block, tmp_path)
            run = tflearn.train(file, root_dir='run', mode='synchronous', gin_bindings=bindings)
    finally:
        stop.set()
        for simulator in simulators:
            simulator.join(60)
    assert run.train_step >= 20 and run.evaluations[-1]['mean_return'] == 5.0


def test_exceptions_are_needed():
    assert NOT_RUN.keys() <= {block.file_name for block in docs_blocks.of('gin') if 'include ' in block.text}


# Every command in the documents is parsed by its program.

# Programs whose command lines are not checked, and why.
UNCHECKED = {
    'cc': 'the test of the page compiles it, with warnings as errors',
    'openssl': 'tests/replay/tunnel_test.py runs the commands of security.md',
    'stunnel': 'tests/replay/tunnel_test.py runs it where it is installed',
    'curl': 'tests/environments/external_server_test.py runs the commands of the page',
    'python3': 'tests/extensions/experiments/tracking_test.py makes an environment, and runs in it',
    'tflearn track': 'the same',
    'g++': 'tests/policies/products_aot_test.py compiles and links the example',
    'echo': 'the same: the input of that program',
    'docker': 'no Docker daemon runs where the tests run; tests/docker_test.py checks the files',
    'tensorflow_model_server': 'TensorFlow Serving is in no Python package',
}

OTHERS = [(place, words) for place, words in COMMANDS if words not in [ours for _, _, ours in OURS]]


# Parses each command by its program, which then shows its help; in a fork of one small process.
PARSE = """
import io, json, os, sys
from scripts import job_process
from tests.testing import console_programs
commands = json.load(sys.stdin)
for program, arguments in commands:
    if os.fork() == 0:
        status, sys.stderr = 0, io.StringIO()
        try:
            sys.stdout = io.StringIO()
            console_programs.main(program, *arguments, '--help')
        except SystemExit as exit:
            status = exit.code
        print(json.dumps([status, sys.stderr.getvalue()]), file=sys.__stdout__, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope='module')
def parsed() -> dict[str, tuple[int, str]]:
    """Exit status and error output by page and line."""
    commands = json.dumps([[program, words[1:]] for _, program, words in OURS])
    done = subprocess.run(
        [sys.executable, '-c', PARSE], input=commands, cwd=ROOT, text=True, capture_output=True, timeout=250, check=True
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {place: result for (place, _, _), result in zip(OURS, results, strict=True)}


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with the files of the documents."""
    folder = tmp_path_factory.mktemp('docs')
    for block in BLOCKS:
        if block.file_name:
            (folder / block.file_name).write_text(block.text, encoding='utf-8')
    return folder


@functools.cache
def _check(folder, gin_file, bindings):
    with docs_blocks.working_in(folder):
        job_config.check(files.resolve(gin_file), bindings, JOBS)


@pytest.mark.parametrize(('place', 'program', 'words'), OURS, ids=[f'{item[0]}-{item[1]}' for item in OURS])
def test_our_commands(parsed, folder, place, program, words):
    assert parsed[place] == [0, '']
    flags = dict(word.removeprefix('--').split('=', 1) for word in words[1:] if word.startswith('--') and '=' in word)
    if program in ('replay_server', 'collect', 'train', 'synchronous', 'evaluate', 'launch'):
        bindings = tuple(word.split('=', 1)[1] for word in words if word.startswith('--gin_bindings='))
        _check(folder, flags.get('gin_file', 'dqn_cartpole'), bindings)


@pytest.mark.parametrize(('place', 'words'), OTHERS, ids=[f'{item[0]}-{item[1][0]}' for item in OTHERS])
def test_commands_of_others(place, words):
    program = pathlib.Path(words[0]).name
    if words[0].removeprefix('./').startswith('scripts/'):
        assert (ROOT / words[0]).stat().st_mode & 0o111
        assert [word for word in words[1:] if '/' in word and not (ROOT / word).exists()] == []
    elif program in ('vulture', 'radon'):
        assert importlib.util.find_spec(program)
    elif program in ('python', 'python3.12', 'python3.13') and words[1] == '-m':
        assert importlib.util.find_spec(words[2])
    elif program == 'python':
        text = (ROOT / words[1]).read_text(encoding='utf-8')
        assert [word for word in words[2:] if f"'{word.partition('=')[0]}'" not in text] == []
    elif program == 'saved_model_cli':
        text = (pathlib.Path(tf.__spec__.origin).parent / 'python' / 'tools' / 'saved_model_cli.py').read_text('utf-8')
        named = [word.removeprefix('--') for i, word in enumerate(words) if i == 1 or word.startswith('--')]
        assert [name for name in named if f"'{name}'" not in text and f"'--{name}'" not in text] == []
    elif program in ('pip', 'uv'):  # tests/clean_install_test.py runs them
        if words[:2] == ['uv', 'venv']:
            return
        named = {extra for word in words for extra in re.findall(r'^\.\[([\w,-]+)\]$', word)}
        assert 'install' in words[1:3] and named <= set(
            re.findall(r"^    '([\w-]+)': \[", (ROOT / 'setup.py').read_text(), re.M)
        )
        assert [word for word in words if word.endswith('.txt') and not (ROOT / word).exists()] == []
    else:
        assert program in UNCHECKED


def test_exceptions_of_commands_are_needed():
    assert set(UNCHECKED) <= {pathlib.Path(words[0]).name for _, words in OTHERS}
