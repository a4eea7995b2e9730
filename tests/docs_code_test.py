"""Every block of code in the documents: Python is executed, commands are parsed by their programs, gin is read."""

import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tests.testing import served_policies
from tflearn.config import files, preview
from tflearn.launch.local import free_address
from tflearn.run_dir import RunDir, read_json

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / 'docs'
LANGUAGES = {'bash', 'gin', 'mermaid', 'python', 'text'}
JOBS = [f'tflearn.jobs.{job}' for job in ('replay_server', 'collect', 'train', 'evaluate')]
SMALL = [
    'train.StopConditions.num_train_steps = 60',
    'train.Intervals.export_interval_steps = 30',
    'dqn.make_agent.fc_layer_params = (8,)',
    'experience.Uniform.min_size = 100',
    'evaluate.evaluate.target_return = None',
    'evaluate.evaluate.num_episodes = 2',
]

# Replaced before a page's Python is executed. [page: (text, replacement), ...]
REPLACED = {
    'README.md': [('num_train_steps=2_000', 'num_train_steps=20')],
    # tests/api/training_test.py runs it with its five processes.
    'python.md': [("'dqn_cartpole')", f"'dqn_cartpole', mode='synchronous', gin_bindings={SMALL})")],
    # tests/distribute/multi_worker_test.py has two workers.
    'distributed.md': [("make('multi_worker')", "make('default')"), ("'/shared/run'", "'shared/run'")],
}
# What a page's Python has around it.
BEFORE = {
    'README.md': """
import gymnasium
MyEnvironment = gymnasium.spec('CartPole-v1').make
observation, _ = MyEnvironment().reset(seed=1)
""",
    'distributed.md': """
import threading
from docs import library_example
make_agent, dataset_fn = lambda: library_example.agent, lambda context: library_example.expert_data(context).repeat()
stop, num_train_steps = threading.Event(), 1_000
""",
    'library.md': 'import tflearn\nfrom docs.library_example import agent, expert_data as dataset_fn',
}
AFTER = {
    'README.md': 'assert action in (0, 1) and run.train_step == 20',
    'distributed.md': 'watchdog.close()\nassert learner.step >= 1000',
    'exporting.md': "assert actions.numpy() in (0, 1) and step['action'] == actions",
    'from-tf-agents.md': 'assert learner.Learner and ppo_learner.PPOLearner',
    'index.md': 'assert actions.numpy() in (0, 1)',
    'library.md': 'assert result.loss > 0',
    'python.md': """
assert run.reason == 'num_train_steps 1000 reached' and run.best_return == 16.5, 'always to the right'
assert (action, actions.tolist()) == (1, [1, 1])
""",
    'serving.md': 'assert tf.make_ndarray(answer.outputs["action"]) in (0, 1)',
    'transforms.md': """
import tflearn
from tflearn import experience
from tflearn.environments import gymnasium_env
run = tflearn.train(
    root_dir='transformed',
    make_environment=functools.partial(gymnasium_env.make, 'CartPole-v1'),
    make_agent=make_agent,
    experience=experience.Experience(replay=experience.Uniform(min_size=100)),
    num_train_steps=20,
    num_episodes=1,
)
assert run.train_step == 20
specs = tflearn.EnvironmentSpecs(tf.TensorSpec((2,), tf.float32), tf.TensorSpec((), tf.int64))
transform = Logarithm()
assert transform.transform_specs(specs).observation.shape == (2,)
assert tf.reduce_all(transform.transform_observation(tf.exp([1.0, 2.0]) - 1.0) == [1.0, 2.0])
""",
    'your-network.md': """
from tf_agents.specs import tensor_spec
from tflearn import train_step, types
observation = {'size': tf.TensorSpec((), tf.float32), 'robot': {'arm': tf.TensorSpec((3,), tf.float32)}}
specs = types.EnvironmentSpecs(observation, tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1))
agent = make_agent(specs, train_step.create_train_step(), dqn.EXPERIENCE)
assert [32 + 16, 100] in [variable.shape.as_list() for variable in agent.policy.variables()]
agent = make_own_agent(specs, train_step.create_train_step(), dqn.EXPERIENCE)
assert [4, 64] in [variable.shape.as_list() for variable in agent.policy.variables()]
agent = make_joint_agent(specs, train_step.create_train_step(), ppo.EXPERIENCE)
assert [list(each.shape) for each in agent._network.trainable_variables[::2]] == [[4, 64], [64, 2], [64, 1]]
""",
    'your-algorithm.md': """
import tflearn
run = tflearn.train('own_task.gin', mode='synchronous', gin_bindings=['train.StopConditions.num_train_steps = 100'])
assert run.train_step == 100
""",
}
# The run whose bindings a page's gin blocks change; blocks that include files are complete themselves.
GIN_RUNS = {'your-network.md': 'impala_cartpole'}
# Programs whose command lines are not checked, and why.
UNCHECKED = {
    'docker': 'no Docker daemon runs where the tests run; tests/docker_test.py checks the files',
    'tensorflow_model_server': 'TensorFlow Serving is in no Python package',
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: pathlib.Path
    line: int
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """The name of the file that the block is, by its first line."""
        match = re.match(r'# (\w+\.(?:py|gin))\n', self.text)
        return match and match[1]

    def __str__(self) -> str:
        return f'{self.page.name}:{self.line}'


def _text(page: pathlib.Path) -> str:
    """Returns the Markdown of a page, or of a notebook, whose code tests/notebook_test.py executes."""
    text = page.read_text(encoding='utf-8')
    if page.suffix == '.md':
        return text
    return '\n'.join(''.join(cell['source']) for cell in json.loads(text)['cells'] if cell['cell_type'] == 'markdown')


def _blocks(page: pathlib.Path) -> Iterator[Block]:
    text = _text(page)
    for match in re.finditer(r'^```(.*)\n((?s:.*?))^```$', text, re.MULTILINE):
        yield Block(page, text[: match.start()].count('\n') + 2, match[1], match[2])


PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted([*DOCS.glob('*.md'), *DOCS.rglob('*.ipynb')])]
BLOCKS = [block for page in PAGES for block in _blocks(page)]


def _of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Yields (page and line, words) of each command: of blocks, and of lines of text that begin with a program."""
    for block in _of('bash'):
        for i, line in enumerate(block.text.replace('\\\n', '  ').splitlines()):
            if words := shlex.split(line, comments=True):
                yield f'{block.page.name}:{block.line + i}', words
            for begin in (
                i for i, word in enumerate(words) if i and re.fullmatch(r'tflearn-(serve|train|launch)', word)
            ):
                yield f'{block.page.name}:{block.line + i} in a container', words[begin:]
    for page in PAGES:
        for i, line in enumerate(_text(page).splitlines(), 1):
            for command in re.findall(r'`((?:\./scripts/|\.venv/bin/|tflearn-)\S+ [^`]*--\w+=[^`]*)`', line):
                yield f'{page.name}:{i}', shlex.split(command)


COMMANDS = [(place, [word for word in words if not re.match(r'[A-Z_]+=', word)]) for place, words in _commands()]
OURS = [
    (
        place,
        pathlib.Path(words[0]).name.removeprefix('tflearn-').replace('-', '_').replace('quickstart', 'launch'),
        words,
    )
    for place, words in COMMANDS
    if re.fullmatch(r'(\./scripts/quickstart|(\.venv/bin/)?tflearn-[\w-]+)', words[0])
]
OTHERS = [(place, words) for place, words in COMMANDS if words not in [ours for _, _, ours in OURS]]


def test_every_block_has_a_language():
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []
    assert len(BLOCKS) > 40
    for page in PAGES:  # Nor is there code by indentation, which has none.
        assert not re.search(r'^\n {4,}\S', re.sub(r'(?ms)^```.*?^```$', '', _text(page)), re.M), page


@contextlib.contextmanager
def _in(folder: pathlib.Path) -> Iterator[None]:
    """Works in `folder`, whose modules can be imported, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(ROOT))
        patch.syspath_prepend(str(folder))
        yield


def _execute(name: str, **given) -> None:
    """Executes the Python of a page, one block after the other, as one program in the working directory."""
    blocks = [block for block in BLOCKS if block.page.name == name]
    for block in blocks:
        if block.file_name:
            pathlib.Path(block.file_name).write_text(block.text, encoding='utf-8')
    programs = [block for block in blocks if block.language == 'python' and not block.file_name]
    texts = {str(block): block.text for block in programs}
    for old, new in REPLACED.get(name, ()):
        assert any(old in text for text in texts.values()), old
        texts = {place: text.replace(old, new) for place, text in texts.items()}
    names = {'__name__': '__main__', **given}
    for place, text in {'before': BEFORE.get(name, ''), **texts, 'after': AFTER[name]}.items():
        exec(compile(text, place, 'exec'), names)


@pytest.fixture(scope='module')
def user(tmp_path_factory) -> Iterator[pathlib.Path]:
    """A folder with the runs of python.md, which is also executed."""
    folder = tmp_path_factory.mktemp('user')
    with _in(folder):
        _execute('python.md')
        yield folder


@pytest.fixture
def server(user) -> Iterator[str]:
    """The address of a server of the run's policies."""
    with served_policies.serving(user / 'runs' / 'dqn_cartpole' / 'policies') as (policies, _):
        yield f'localhost:{policies.port}'


def test_from_python(user):
    assert RunDir(user / 'runs' / 'dqn_cartpole').train_result.exists()
    (program,) = [block for block in _of('python') if 'class Corridor' in block.text and block.page.name == 'python.md']
    lines = [line for line in program.text.splitlines() if not re.match(r'\s*(import |from |"""|$)', line)]
    assert len(lines) < 30


PROGRAMS = (
    'README',
    'distributed',
    'exporting',
    'from-tf-agents',
    'index',
    'library',
    'transforms',
    'your-algorithm',
    'your-network',
)


# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
@pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
@pytest.mark.parametrize('page', PROGRAMS)
def test_python(user, page):
    _execute(f'{page}.md')


def test_python_of_a_client(user, server, monkeypatch):
    monkeypatch.setitem(REPLACED, 'serving.md', [("'localhost:8500'", repr(server))])
    _execute('serving.md')


def test_no_page_is_left_out():
    assert {block.page.name for block in _of('python')} == set(AFTER)


def test_the_library_example(tmp_path, capsys):
    text = (DOCS / 'library_example.py').read_text(encoding='utf-8')
    for run in (1, 2):
        with _in(tmp_path):
            runpy.run_path(str(DOCS / 'library_example.py'))
        out = capsys.readouterr().out
        losses = [float(loss) for loss in re.findall(r'loss (\S+)', out)]
        assert len(losses) == 3 and f'train step {300 * run}' in out
        assert run == 2 or losses[-1] < losses[0] / 2
    assert not re.search(r'^(import|from) (gin|reverb|tflearn\.jobs)', text, re.MULTILINE)
    assert len([line for line in text.splitlines() if line.strip()]) <= 35


@pytest.mark.parametrize('block', _of('gin'), ids=str)
def test_gin(block, tmp_path):
    """A block is read with a run that it changes, unless it includes one; it may leave out what it imports."""
    modules = {path.stem: path.relative_to(ROOT).with_suffix('') for path in (ROOT / 'tflearn').rglob('*.py')}
    used = {name for name in re.findall(r'(?:^|[@/(])(\w+)\.\w+', block.text, re.MULTILINE) if name in modules}
    text, header = block.text, 'from __gin__ import dynamic_registration'
    if header not in text:
        imports = [' import '.join(str(modules[name]).replace('/', '.').rsplit('.', 1)) for name in sorted(used)]
        text = '\n'.join([header, *(f'from {line}' for line in imports), text])
    for other in BLOCKS:
        if other.page == block.page and other.file_name:
            (tmp_path / other.file_name).write_text(other.text, encoding='utf-8')
    (tmp_path / 'block.gin').write_text(text, encoding='utf-8')
    run = '' if 'include ' in text else f"include '{GIN_RUNS.get(block.page.name, 'dqn_cartpole')}.gin'\n"
    (tmp_path / 'run.gin').write_text(f"{header}\n{run}include 'block.gin'\n", encoding='utf-8')
    with _in(tmp_path):
        preview.check(tmp_path / 'run.gin', [], JOBS)


# Parses each command by its program, which then shows its help; in a fork of one small process.
PARSE = """
import importlib, io, json, os, sys
commands = json.load(sys.stdin)
for name in {'job_flags', 'job_process', *(program for program, _ in commands)}:
    importlib.import_module(f'scripts.{name}')
for program, arguments in commands:
    if os.fork() == 0:
        status, sys.argv, sys.stderr = 0, [program, *arguments, '--help'], io.StringIO()
        try:
            sys.stdout = io.StringIO()
            importlib.import_module(f'scripts.{program}').main()
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


@pytest.mark.parametrize(('place', 'program', 'words'), OURS, ids=[f'{item[0]}-{item[1]}' for item in OURS])
def test_our_commands(parsed, tmp_path, place, program, words):
    assert parsed[place] == [0, '']
    flags = dict(word.removeprefix('--').split('=', 1) for word in words[1:] if word.startswith('--') and '=' in word)
    for block in BLOCKS:
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.text, encoding='utf-8')
    if program in ('replay_server', 'collect', 'train', 'synchronous', 'evaluate', 'launch'):
        bindings = [word.split('=', 1)[1] for word in words if word.startswith('--gin_bindings=')]
        with _in(tmp_path):
            preview.check(files.resolve(flags.get('gin_file', 'dqn_cartpole')), bindings, JOBS)


@pytest.mark.parametrize(('place', 'words'), OTHERS, ids=[f'{item[0]}-{item[1][0]}' for item in OTHERS])
def test_commands_of_others(place, words):
    program = pathlib.Path(words[0]).name
    if words[0].removeprefix('./').startswith('scripts/'):
        assert (ROOT / words[0]).stat().st_mode & 0o111
        assert [word for word in words[1:] if '/' in word and not (ROOT / word).exists()] == []
    elif program in ('vulture', 'radon'):
        assert importlib.util.find_spec(program)
    elif program == 'python' and words[1] == '-m':
        assert importlib.util.find_spec(words[2])
    elif program == 'python':
        text = (ROOT / words[1]).read_text(encoding='utf-8')
        assert [word for word in words[2:] if f"'{word.partition('=')[0]}'" not in text] == []
    elif program == 'saved_model_cli':
        text = (pathlib.Path(tf.__spec__.origin).parent / 'python' / 'tools' / 'saved_model_cli.py').read_text('utf-8')
        named = [word.removeprefix('--') for i, word in enumerate(words) if i == 1 or word.startswith('--')]
        assert [name for name in named if f"'{name}'" not in text and f"'--{name}'" not in text] == []
    elif program == 'pip':
        named = {extra for word in words for extra in re.findall(r'^\.\[([\w,-]+)\]$', word)}
        assert words[1] == 'install' and named <= set(
            re.findall(r"^        '([\w-]+)': \[", (ROOT / 'setup.py').read_text(), re.M)
        )
        assert [word for word in words if word.endswith('.txt') and not (ROOT / word).exists()] == []
    else:
        assert program in UNCHECKED


def test_exceptions_are_needed():
    assert set(UNCHECKED) <= {pathlib.Path(words[0]).name for _, words in OTHERS}


def test_jobs_by_hand(tmp_path):
    by_hand = [
        (program, words) for place, program, words in OURS if place.startswith('index.md') and 'by_hand' in str(words)
    ]
    assert [program for program, _ in by_hand] == ['replay_server', 'collect', 'train', 'evaluate']
    address = free_address()
    jobs = [_start(program, words, address, tmp_path) for program, words in by_hand]
    try:
        for job in jobs[1:]:
            assert job.wait(180) == 0
        jobs[0].send_signal(signal.SIGINT)
        assert jobs[0].wait(60) == 128 + signal.SIGINT
    finally:
        for job in jobs:
            job.kill()
    assert read_json(RunDir(tmp_path).done)['train_step'] == 60


def _start(program: str, words: list[str], address: str, folder: pathlib.Path) -> subprocess.Popen[bytes]:
    given = [word for word in words[1:] if not word.startswith(('--root_dir', '--replay_address'))]
    given += [f'--root_dir={folder}', f'--replay_address={address}', *(f'--gin_bindings={item}' for item in SMALL)]
    with (folder / f'{program}.log').open('w') as log:
        command = [sys.executable, '-m', f'scripts.{program}', *given]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
