"""The launch program: its command line, and a run through it, with small programs in place of the jobs."""

import importlib.util
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys

import pytest

import scripts
from tests.testing import command_lines, warm_parents
from tflearn.api import process_run, run_check
from tflearn.config import files
from tflearn.core.errors import UserError
from tflearn.files.run_dir import RunDir

pytestmark = pytest.mark.usefixtures('forked_checks')

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 60.0
# What a job's program is here: it writes its flags down, and evaluate ends the run when all have.
JOB = """
import faulthandler, pathlib, sys, threading
faulthandler.dump_traceback_later(15)
from tflearn.files.run_dir import RunDir, write_json
from tflearn.core.waiting import wait_until
root = next(flag.partition('=')[2] for flag in sys.argv if flag.startswith('--root_dir='))
job, run_dir = pathlib.Path(__file__).stem, RunDir(root)
print(sys.argv[1:], flush=True)
if job == 'evaluate':
    num_jobs = len(run_dir.commands.read_text().splitlines()) - 1
    jobs = lambda: {*run_dir.logs.iterdir()} - {run_dir.log('launch')}
    started = lambda: [log for log in jobs() if len(log.read_text().splitlines()) > 1]
    wait_until(lambda: len(started()) == num_jobs, lambda: f'a line of each job, not only {started()}', 20)
    write_json(run_dir.done, {'reason': 'num_train_steps 7', 'train_step': 7})
if job == 'replay_server':
    threading.Event().wait(30)
"""


def launch(*flags, cwd, package='scripts', path=CHECKOUT):
    if (package, path) == ('scripts', CHECKOUT):  # which starts no job here
        return command_lines.run('launch', *flags, cwd=cwd, timeout=DEADLINE_SECS)
    environment = {**os.environ, 'PYTHONPATH': f'{path}:{CHECKOUT}'}
    command = [sys.executable, '-m', f'{package}.launch', *flags]
    try:
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECS)
    except subprocess.TimeoutExpired as error:
        logs = [f'{log}:\n{log.read_text()}' for log in sorted(cwd.glob('run/logs/*.log'))]
        pytest.fail('\n'.join([str(error), *logs]))


@pytest.fixture
def installed(tmp_path):
    """A folder that holds the package, the programs and the gin files as the wheel has them."""
    programs = tmp_path / 'site' / 'tflearn_scripts'
    for source, copy in (('scripts', programs), ('tflearn', programs.with_name('tflearn'))):
        shutil.copytree(CHECKOUT / source, copy, ignore=shutil.ignore_patterns('__pycache__'))
    for job in ('replay_server', 'train', 'evaluate', 'collect'):
        (programs / f'{job}.py').write_text(JOB)
    shutil.copytree(CHECKOUT / 'gin', programs.parent / 'tflearn_gin')
    return programs.parent


def test_a_run_through_the_program(installed, tmp_path):
    flags = [
        '--root_dir=run',
        '--gin_file=dqn_cartpole',
        '--gin_bindings=train.Device.strategy = "cpu"',
        '--gin_bindings=train.StopConditions.max_secs = 60',
    ]
    more = ['--num_collectors=2', '--connect_timeout_secs=7.5', '--coordinator_address=localhost:4321']
    ended = launch(*flags, *more, cwd=tmp_path, package='tflearn_scripts', path=installed)
    assert (ended.returncode, ended.stderr) == (0, '')
    lines = ended.stdout.splitlines()
    assert lines[0] == 'Run in run; logs in run/logs.'
    assert lines[-5] == '  learning curve   run/learning_curve.png'
    run_dir = RunDir(tmp_path / 'run')
    shared = [
        f'--root_dir={run_dir.root}',
        f'--gin_file={installed / "tflearn_gin" / "dqn_cartpole.gin"}',
        '--gin_bindings=train.Device.strategy = "cpu"',
        '--gin_bindings=train.StopConditions.max_secs = 60',
        '--connect_timeout_secs=7.5',
        '--stop_timeout_secs=30',
        '--coordinator_address=localhost:4321',
    ]
    commands = [shlex.split(line) for line in run_dir.commands.read_text().splitlines()[1:]]
    assert re.fullmatch(r'--replay_address=localhost:\d+', commands[0].pop())
    assert [command[2:] for command in commands] == [
        ['tflearn_scripts.replay_server', *shared],
        ['tflearn_scripts.train', *shared],
        ['tflearn_scripts.evaluate', *shared],
        ['tflearn_scripts.collect', *shared, '--collector_name=collect_0'],
        ['tflearn_scripts.collect', *shared, '--collector_name=collect_1'],
    ]
    assert 'collect_1' in run_dir.log('collect_1').read_text().splitlines()[1]


def test_several_replay_servers_get_a_port_each(tmp_path):
    flags = ['--root_dir=run', '--gin_file=dqn_cartpole', '--num_replay_servers=2', '--num_collectors=2']
    ended = launch(*flags, '--render', cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, '')
    commands = [shlex.split(line) for line in ended.stdout.splitlines() if ' scripts.' in line]
    coordinator, *servers = commands[:3]
    assert 'scripts.coordinator' in coordinator
    (where,) = (part for part in coordinator if re.fullmatch(r'--coordinator_address=localhost:\d+', part))
    assert all(where in command for command in commands), 'all find each other there'
    own = [[part for part in command if re.match('--(num_)?shard|--noserve', part)] for command in servers]
    assert own == [
        ['--num_shards=2', '--noserve_coordinator'],
        ['--num_shards=2', '--noserve_coordinator', '--shard=1'],
    ]
    addresses = [part for command in commands for part in command if part.startswith('--replay_address=')]
    assert len(set(addresses)) == 2 and all(address.startswith('--replay_address=localhost:') for address in addresses)


def test_a_coordinator_alone_and_its_relays_are_more_jobs(tmp_path):
    flags = ['--root_dir=run', '--gin_file=dqn_cartpole', '--coordinator_alone', '--num_relays=2']
    ended = launch(*flags, '--weights_dtype=bfloat16', '--render', cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, '')
    commands = [shlex.split(line) for line in ended.stdout.splitlines() if ' scripts.' in line]
    commands = [[part for part in command if part.startswith('--') or '.' in part] for command in commands]
    alone, *relays = (command for command in commands if any(part.endswith('.coordinator') for part in command))
    assert not any(part.startswith('--relay_address') for part in alone)
    for i, relay in enumerate(relays):
        assert {f'--name=relay_{i}', f'--index={i}'} <= {*relay}
        assert any(re.fullmatch(r'--relay_address=localhost:\d+', part) for part in relay)
    others = [command for command in commands if command not in (alone, *relays)]
    assert len(others) == 4 and all('--weights_dtype=bfloat16' in command for command in others)
    (where,) = {part for command in commands for part in command if part.startswith('--coordinator_address=')}
    assert where.startswith('--coordinator_address=localhost:')


def test_many_collectors_have_a_relay_for_each_hundred(installed, tmp_path):
    flags = ['--root_dir=run', '--gin_file=dqn_cartpole', '--num_collectors=301', '--render']
    assert launch(*flags, cwd=tmp_path).stdout.count('--relay_address=') == 3
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        ended = launch(*flags, '--num_relays=1000', cwd=tmp_path, package='tflearn_scripts', path=installed)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (ended.returncode, ended.stdout) == (2, '')
    assert 'got num_replay_servers=1 and num_relays=1000, for which there are no ports' in ended.stderr


def test_a_feed_is_a_dispatcher_and_workers(tmp_path):
    flags = ['--root_dir=run', '--gin_file=dqn_cartpole', '--num_feed_workers=2']
    ended = launch(*flags, '--render', cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, '')
    commands = [shlex.split(line) for line in ended.stdout.splitlines() if ' scripts.' in line]
    fed = [command for command in commands if any(part.startswith('--feed_address=localhost:') for part in command)]
    programs = [next(part.rpartition('.')[2] for part in command if part.startswith('scripts.')) for command in fed]
    assert sorted(programs) == ['feed', 'feed', 'feed', 'train']
    workers = sorted(part for command in fed for part in command if part.startswith('--worker='))
    assert workers == ['--worker=0', '--worker=1']
    assert len({part for command in fed for part in command if part.startswith('--feed_address=')}) == 1


def test_a_server_that_would_stay_empty_is_a_warning(tmp_path):
    ended = launch('--root_dir=run', '--gin_file=dqn_cartpole', '--num_replay_servers=2', '--render', cwd=tmp_path)
    assert ended.returncode == 0
    assert 'warning: got 2 replay servers for 1 collectors; each writes to one' in ended.stderr


def test_fewer_replay_servers_than_before_are_refused_before_a_job_starts(tmp_path):
    RunDir(tmp_path / 'run').shard_checkpoints(2).mkdir(parents=True)
    ended = launch('--root_dir=run', '--gin_file=dqn_cartpole', '--num_replay_servers=2', cwd=tmp_path)
    assert ended.returncode == 2 and 'whose replay was saved by 3; need as many' in ended.stderr
    assert not RunDir(tmp_path / 'run').logs.exists()


IN_RUN, FILE = '--root_dir=run', '--root_dir=run --gin_file=file'
CARTPOLE = '--root_dir=run --gin_file=dqn_cartpole'
NO_TOKEN = 'got a --coordinator_token that cannot be read (No such file or directory), and is not shown'


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        ('', 'got no --root_dir; need'),
        (IN_RUN, 'got no --gin_file; need'),
        (f'{IN_RUN} --gin_file=no', "got gin_file='no'; need the path of a file, or the name of one of"),
        (f'{CARTPOLE} --gin_bindings=train.StopConditions.num_train_stpes=1', 'train.StopConditions.num_train_steps'),
        (f'{CARTPOLE} --gin_bindings=evaluate.Nope.x=1 --render', "tflearn.jobs.evaluate has no 'Nope'; need a valid "),
        (f'{CARTPOLE} --gin_bindings=gymnasium_env.make.name="CartPol-v1"', 'CartPole-v1'),
        (f'{CARTPOLE} --gin_bindings=train.StopConditions.num_train_steps=%gin.REQUIRED', 'no value for'),
        ('--root_dir=file/run --gin_file=dqn_cartpole', 'which cannot be written to'),
        pytest.param(
            '--root_dir=gs://me:key@bucket/run --gin_file=file',
            'with credentials or a query',
            marks=pytest.mark.extensions,
        ),
        ('--root_dir=s3://bucket/run --gin_file=file --backend=ray', 'got root_dir=s3://bucket/run with --backend=ray'),
        (f'{FILE} --coordinator_address=8000', 'need HOST:PORT'),
        (f'{FILE} --coordinator_address=a:1,a:2', 'need HOST:PORT'),
        (f'{FILE} --coordinator_token=0123456789abcdef', NO_TOKEN),
        (f'{FILE} --coordinator_token=0123456789abcdef --backend=kubernetes', 'that is no path, and is not shown'),
        (f'{CARTPOLE} --num_feed_workers=1 --backend=slurm', 'got --num_feed_workers with --backend=slurm; need the l'),
        (f'{IN_RUN} --gin_file=ppo_cartpole --num_feed_workers=1', 'got --num_feed_workers with Queue.versions_ahead;'),
        (
            f'{CARTPOLE} --num_replay_servers=2 --gin_bindings=Uniform.sampling="server"',
            'got several replay servers with Uniform replay, from which the servers draw; need Uniform',
        ),
        (f'{FILE} --num_collectors=0', 'num_collectors'),
        (f'{CARTPOLE} --num_replay_servers={"9" * 400}', 'need 1 to 10000'),
        (f'{FILE} --root=run', 'Did you mean'),
        (f'{FILE} train', "got the argument 'train'"),
    ],
)
def test_user_errors_take_one_line(tmp_path, flags, words):
    (tmp_path / 'file').touch()
    ended = launch(*flags.split(), cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, '')
    assert ended.stderr.startswith('tflearn-launch: error: got ')
    assert words in ended.stderr and '0123456789abcdef' not in ended.stderr
    assert ended.stderr.count('\n') == 1
    assert [path.name for path in tmp_path.iterdir()] == ['file']


_SELECTORS = (
    *('', '.', 'x', 'é', '\0', '\ud800', '/x', 'a/b/x', 'train', 'train.', 'train..x', 'train.train', 'train.train.x'),
    *(
        f'{job}.Nope.x'
        for job in ('train', 'evaluate', 'collect', 'replay_server', 'dqn', 'experience', 'tflearn.jobs')
    ),
    *(f'train.{name}.x' for name in ('_source', '_imported', '_outlines', '__source__', '__class__', '__dict__')),
    *(f'train.{name}.x' for name in ('__getattr__', '__path__', 'load', 'threading', 'train.__call__')),
    *('os.system.x', 'gin.x', 'gin.macro.value', 'sac.make_agent.gamma', 'Dataset.paths', 'train.Dataset.paths'),
    *('train.train.stop', 'train.StopConditions', 'train:', 'include', 'import'),
)
_VALUES = (
    *('', '1', '1e999', '@', '%', '@x', '@@', '%%', '@/', '@x(', '((', '[[1', '{[]: 1}', "'", '"""', '\\', '1\n='),
    'é',
)
_DEEP = ('[' * 5000, '(' * 200 + ')' * 200, '-' * 5000 + '1', '1' * 5000)


def test_no_binding_ends_in_a_traceback(tmp_path, capsys):
    bindings = [f'{selector}=1' for selector in _SELECTORS] + [f'train.nope={value}' for value in (*_VALUES, *_DEEP)]
    bindings += ['from', 'from a import', 'import a..b', 'from . import a', 'import .']
    bindings += ["include '/dev/null/x'", 'include 3']
    # What the launcher's child answers; one binding by the launcher itself.
    gin_file, jobs = str(files.resolve('dqn_cartpole')), [f'tflearn.jobs.{job}' for job in ('evaluate', 'train')]
    for binding in bindings:
        answer = run_check.answer(run_check.Question(gin_file, [binding], jobs))
        assert answer.get('error', '').startswith('User'), (binding, answer)
        assert re.match(r'got [^\n]*; need [^\n]*$', answer['message']), (binding, answer)
    with pytest.raises(UserError, match='^got [^\n]*; need [^\n]*$'):
        process_run.run(
            RunDir(tmp_path), 'dqn_cartpole', ['train.x=1'], package='scripts', backend=process_run.Backend(render=True)
        )
    assert capsys.readouterr().out == ''


PROVIDERS = {
    'sac.make_agent.gamma=1': "'sac' (add --gin_bindings='from tflearn.agents import sac'); need",
    'make_agent=@sac.make_agent': "'sac' (add --gin_bindings='from tflearn.agents import sac'); need",
    'Dataset.paths="a"': "'Dataset' (write train.Dataset); need",
    'Reading.order="epochs"': "'Reading' (add --gin_bindings='from tflearn.sampling import episode_files' and write",
    'train.Dataset.paths="a"': 'uses train.Dataset (bind a parameter that takes it to @train.Dataset()',
}


@pytest.mark.parametrize('binding', PROVIDERS)
def test_what_provides_a_name_is_said(tmp_path, binding):
    with pytest.raises(UserError) as raised:
        process_run.run(RunDir(tmp_path), 'dqn_cartpole', [binding], package='scripts')
    assert PROVIDERS[binding] in str(raised.value)


EXTRAS = {
    'ale_py': ('dqn_pong', 'atari'),
    'mujoco': ('sac_halfcheetah', 'mujoco'),
    'Box2D': ('dqn_lunar_lander', 'box2d'),
}


@pytest.mark.parametrize('module', EXTRAS)
def test_a_missing_extra_is_reported_before_any_job_starts(tmp_path, module):
    if importlib.util.find_spec(module):
        pytest.skip(f'{module} is installed')
    gin_file, extra = EXTRAS[module]
    ended = launch('--root_dir=run', f'--gin_file={gin_file}', cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count('\n')) == (2, '', 1)
    assert ended.stderr.startswith('tflearn-launch: error: got ')
    assert f'which needs {module}; need that installed; pip install ' in ended.stderr
    assert ended.stderr.endswith(f'(the extra {extra})\n')
    assert not list(tmp_path.iterdir())


def test_numpy_2_is_reported_in_one_line(tmp_path):
    (tmp_path / 'numpy-2.1.0.dist-info').mkdir()
    (tmp_path / 'numpy-2.1.0.dist-info' / 'METADATA').write_text('Metadata-Version: 2.1\nName: numpy\nVersion: 2.1.0\n')
    ended = launch('--root_dir=run', '--gin_file=dqn_cartpole', cwd=tmp_path, path=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count('\n')) == (2, '', 1)
    assert ': error: got numpy 2.1.0 in ' in ended.stderr and "pip install 'numpy==1.*'" in ended.stderr


OWN_TASKS = """
import gymnasium
from gymnasium.envs.classic_control import cartpole
gymnasium.register('RegisteredByOwnTasks-v0', cartpole.CartPoleEnv)
"""


def test_the_launcher_itself_loads_no_tensorflow(tmp_path):
    (tmp_path / 'own').mkdir()
    (tmp_path / 'own' / 'tasks.py').write_text(OWN_TASKS)
    # The first check is in a process of its own, the second in a fork.
    program = """
import pathlib, sys
from tflearn.core import preflight
preflight.import_from_here()
from tflearn.api import process_run, run_check
from tflearn.config import files
from tflearn.files.run_dir import RunDir
own = ['import own.tasks', 'gymnasium_env.make.name="RegisteredByOwnTasks-v0"']
print_only = process_run.Backend(render=True)
assert process_run.run(RunDir('run'), 'dqn_cartpole', own, package='scripts', backend=print_only) == 0
from tests.testing import warm_parents
try:
    with warm_parents.forked(pathlib.Path(sys.argv[1])):
        process_run.run(RunDir('run'), 'dqn_cartpole', own[1:], package='scripts', backend=print_only)
except ValueError as error:
    assert "got name='RegisteredByOwnTasks-v0'" in str(error), error
else:
    raise AssertionError('the unknown name was accepted')
assert not {'tensorflow', 'tf_agents', 'reverb', 'gin', 'own.tasks', 'tflearn.jobs.train'} & set(sys.modules)
"""
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT), 'PYTHONSAFEPATH': '1'}  # As a console command is started.
    command = [sys.executable, '-c', program, str(warm_parents.loaded())]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=DEADLINE_SECS)


def test_helpfull_lists_all_flags(tmp_path):
    ended = launch('--helpfull', cwd=tmp_path)
    assert ended.returncode == 0
    flags = ('root_dir', 'gin_file', 'gin_bindings', 'coordinator_address', 'connect_timeout_secs', 'num_collectors')
    for flag in flags:
        assert f'--{flag}' in ended.stdout


def test_wrong_flags_fail_fast():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, '-m', 'scripts.launch']
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=DEADLINE_SECS)
    assert ended.returncode == 2, ended.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, since what else the machine does is not the program's fault.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6
    heavy = "{'tensorflow', 'tf_agents', 'reverb', 'gin', 'numpy', 'rich'}"
    program = f'import sys, scripts.launch; sys.exit(sorted({heavy} & set(sys.modules)) or 0)'
    subprocess.run([sys.executable, '-c', program], cwd=CHECKOUT, check=True, timeout=DEADLINE_SECS)


def test_ctrl_c_before_the_first_job_takes_one_line(tmp_path):
    program = """
import sys
from scripts import launch
from tflearn.api import run_check
def interrupted(*_):
    raise KeyboardInterrupt
run_check.ask, sys.argv = interrupted, ['launch', '--root_dir=run', '--gin_file=dqn_cartpole', '--nowarm_start']
launch.main()
"""
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
    command = [sys.executable, '-c', program]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECS
    )
    assert (ended.returncode, ended.stdout) == (130, '')
    assert ended.stderr == 'tflearn-launch: stopped by SIGINT before any job was started\n'
