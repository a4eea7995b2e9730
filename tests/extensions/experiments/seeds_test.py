"""Seeds as users run them: by the program."""

import fcntl
import signal
import stat

import pytest

from tests.testing import forks
from tests.testing.jobs import SMALL_BINDINGS
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json

DEADLINE_SECS = 240.0
BINDINGS = [f'--gin_bindings={binding}' for binding in SMALL_BINDINGS]


@pytest.fixture
def program(tmp_path):
    """Returns a function that starts the program in a folder; its output is in `out` there."""
    started = []

    def start(*arguments):
        root = f'--root_dir={tmp_path / "runs"}'
        started.append(forks.start('scripts', 'seeds', root, *arguments, log=tmp_path / 'out', cwd=tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def seed_of(run_dir):
    lines = run_dir.config.read_text().splitlines()
    return {line.split(' = ')[0]: int(line.split(' = ')[1]) for line in lines if '.seed = ' in line}


def test_each_seed_is_a_run_and_they_are_compared(two_seeds):
    assert stat.S_IMODE(two_seeds.root.stat().st_mode) == 0o700
    for seed in (3, 4):
        run_dir = RunDir(two_seeds.root / f'seed_{seed}')
        assert read_json(run_dir.done)['train_step'] == 60
        assert seed_of(run_dir) == {
            'train.Initial.seed': seed,
            'collect_settings.CollectOptions.seed': seed,
            'evaluate.evaluate.seed': 1_000_000 + seed,
        }
        assert f'seed {seed}: done: num_train_steps 60 reached, mean return' in two_seeds.output
    assert '| run | 2 | ' in two_seeds.output
    assert (two_seeds.root / 'comparison.md').read_text().partition('\n\n![')[0] in two_seeds.output
    assert {'comparison.md', 'comparison.png', 'comparison.csv'} <= {path.name for path in two_seeds.root.iterdir()}


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_a_seed_that_failed_does_not_end_the_others(program, tmp_path):
    endless = ['--gin_bindings=train.StopConditions.num_train_steps=100_000_000']
    flags = ['--gin_file=dqn_cartpole', '--seeds=2', '--parallel=2', *BINDINGS]
    statuses = [RunDir(tmp_path / 'runs' / f'seed_{seed}').status('train') for seed in (1, 2)]
    begun = lambda: all((read_json(status) or {}).get('train_step', 0) > 0 for status in statuses)  # noqa: E731
    seeds = program(*flags, *endless)
    wait_until(begun, 'train steps of both', DEADLINE_SECS)
    seeds.send_signal(signal.SIGINT)
    assert seeds.wait(DEADLINE_SECS) == 130
    assert (tmp_path / 'out').read_text().count('stopped; the same command continues it') == 2
    # Seed 2 cannot go on.
    RunDir(tmp_path / 'runs' / 'seed_2').config.write_text('damaged')
    for checkpoint in RunDir(tmp_path / 'runs' / 'seed_2').checkpoints.iterdir():
        checkpoint.write_bytes(b'damaged') if checkpoint.is_file() else None
    steps = read_json(statuses[0])['train_step']
    goal = f'--gin_bindings=train.StopConditions.num_train_steps={steps + 50}'
    assert program(*flags, goal).wait(DEADLINE_SECS) == 1
    out = (tmp_path / 'out').read_text()
    assert f'seed 1: done: num_train_steps {steps + 50} reached' in out
    assert 'seed 2: failed (exit code 1)' in out
    assert '| runs | ' in out


@pytest.mark.parametrize('mode', ['synchronous', pytest.param('processes', marks=pytest.mark.slow)])
def test_the_line_of_a_run_that_failed_has_the_cause(program, tmp_path, mode):
    flags = ['--gin_file=dqn_cartpole', '--seeds=1', f'--mode={mode}', "--gin_bindings=dqn.make_agent.action_mask='no'"]
    assert program(*flags).wait(DEADLINE_SECS) == 1
    (line,) = [line for line in (tmp_path / 'out').read_text().splitlines() if 'failed' in line]
    assert "error: got action_mask='no' and" in line.lower() and 'need one of several parts; see ' in line


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ([], 'got no --gin_file; need one'),
        (['--gin_file=dqn_cartpol'], "got gin_file='dqn_cartpol'; did you mean dqn_cartpole"),
        (['--gin_file=dqn_cartpole', '--gin_bindings=train.Initial.sed=1'], 'train.Initial.sed'),
        (['--gin_file=dqn_cartpole', '--seeds=0'], 'a wrong flag'),
        (['--gin_file=dqn_cartpole', 'seven'], "got the argument 'seven'"),
    ],
)
def test_wrong_input_is_one_line_and_starts_nothing(program, tmp_path, flags, message):
    assert program(*flags).wait(DEADLINE_SECS) == 2
    (line,) = (tmp_path / 'out').read_text().splitlines()
    assert line.startswith('tflearn seeds: error: got ') and message in line
    assert not (tmp_path / 'runs').exists()


def test_a_folder_has_one_at_a_time(program, tmp_path):
    (tmp_path / 'runs').mkdir()
    with open(tmp_path / 'runs' / 'runs.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert program('--gin_file=dqn_cartpole').wait(DEADLINE_SECS) == 2
    assert 'where another tflearn seeds, policies, tune or population works' in (tmp_path / 'out').read_text()
