"""Random bad input: each program accepts it, or refuses it with status 2 and one line that says what to do."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.chaos import forked
from tests.chaos.chaos_run import ROOT
from tests.conftest import SEED
from tests.testing import console_programs, forks

DEADLINE_SECS = 1800.0
# Real programs: the arguments, and how the error line goes on after '<program>: error: '.
_RUN = '--root_dir=run --gin_file=dqn_cartpole'
REAL = {
    'train': [
        ('', 'got no --root_dir; need'),
        ('--root_dir=run', 'got no --gin_file; need'),
        ('--root_dir=gs://me:key@a/b --gin_file=dqn_cartpole', 'got a URL of gs with credentials'),
        ('--root_dir=~nobody_of_this_name --gin_file=dqn_cartpole', 'got --root_dir='),
        ('--root_dir=/dev/null/run --gin_file=dqn_cartpole', "got root_dir='/dev/null/run'"),
        (f'--root_dir={"a" * 300} --gin_file=dqn_cartpole', 'got root_dir='),
        (f'{_RUN} --stop_timeout_secs=nan', 'got a wrong flag: flag --stop_timeout_secs=nan'),
        (f'{_RUN} --connect_timeout_secs=1e30', 'got a wrong flag: flag --connect_timeout_secs=1e30'),
        (f'{_RUN} --connect_timeout_secs=soon', 'got a wrong flag: '),
        (f'{_RUN} --coordinator_address=localhost:99999', 'got --coordinator_address=localhost:99999; need HOST:PORT'),
        (f'{_RUN} --gin_bindings=import', "got 'import' in --gin_bindings"),
        (f'{_RUN} --gin_bindings=train.train.x={{[]:1}}', "got 'train.train.x={[]:1}' in --gin_bindings"),
        (f'{_RUN} --gin_bindings=train.train.x={"[" * 3000}', 'got '),
        (f"{_RUN} --gin_bindings=include'{'a' * 300}'", 'got gin_file='),
        (f'{_RUN} --strategy=nope', "got strategy='nope'"),
        (f'{_RUN} --gin_bindings=train.StopConditions.num_train_steps="x"', 'got train.StopConditions.num_train_steps'),
    ],
    'collect': [
        (f'{_RUN} --collector_name=a/b', 'got a wrong flag: flag --collector_name=a/b'),
        ('--root_dir=run --gin_file=/dev/null/x', "got gin_file='/dev/null/x'"),
        (f'--root_dir=run --gin_file={"a" * 300}', 'got gin_file='),
        ('--root_dir=run --gin_file=bytes.gin', 'got the gin file '),
        (f'{_RUN} --gin_bindings=gymnasium_env.make.name="Nope-v1"', "got name='Nope-v1'"),
    ],
    'evaluate': [
        (f'{_RUN} --coordinator_address=', 'got --coordinator_address=; need HOST:PORT'),
        ('--root_dir=run --data=nothing', 'got no policy in '),
        ('--root_dir=run --data=data --gamma=nan', 'got --gamma=nan'),
        ('--root_dir=run --data=', 'got an empty --data'),
    ],
    'replay_server': [
        (f'{_RUN} --nohelp x', "got the argument 'x'"),
        ('--flagfile=nothing', 'got a wrong flag: '),
    ],
    'launch': [
        (f'{_RUN} --num_collectors=0', 'got a wrong flag: flag --num_collectors=0'),
        (f'{_RUN} --num_collectors=99999999999999999999999x', 'got a wrong flag: '),
        (f'{_RUN} --silent_timeout_secs=nan', 'got a wrong flag: '),
        (f'{_RUN} --gin_bindings=tran.StopConditions.num_train_steps=3', 'got tran.StopConditions.num_train_steps'),
        (f'{_RUN} --gin_bindings=make_agent=@dqn.make_agnet', 'got @dqn.make_agnet'),
        (f'{_RUN} --gin_bindings=x=%y', 'got '),
        ('--root_dir=done --gin_file=dqn_cartpole', 'got a damaged file '),
    ],
    'serve': [
        ('--root_dir=run --port=70000', 'got a wrong flag: flag --port=70000'),
        ('--root_dir=run --poll_secs=nan', 'got a wrong flag: flag --poll_secs=nan'),
        ('--root_dir=run --versions=x', 'got --versions=x'),
        ('--root_dir=run --tls_key=nothing', 'got --tls_key=nothing; need a file'),
    ],
    'export': [
        ('--root_dir=run', 'got no policy in '),
        ('--root_dir=run --format=int4', 'got a wrong flag: flag --format=int4'),
        ('--root_dir=run --output=gs://a/b', 'got --output='),
    ],
    'data': [
        ('nope', "got 'nope'; need one of"),
        ('describe', 'got no --data; need'),
        ('describe --data=nothing', 'got Dataset.paths with '),
        ('describe --data=damaged', 'got damaged/dataset.json of format None; need one of (1, 2)'),
        ('filter --data=data --output=new', 'got no filter; need'),
        ('record --root_dir=run --gin_file=dqn_cartpole', 'got no --output; need'),
        ('convert --data=data --output=new --format=x', 'got a wrong flag: '),
    ],
    'doctor': [('', 'got no argument; need ROOT_DIR ...; see'), ('nothing', 'got ')],
}
CASES = [(program, *case) for program, cases in REAL.items() for case in cases]


def random_cases(*flags, secs=DEADLINE_SECS):
    """Runs random cases in forks of a process; returns their counts."""
    ended = forks.run('tests.chaos.bad_input', f'--seed={SEED}', *flags, timeout=secs)
    assert ended.returncode == 0, ended.stderr[-10_000:]
    return json.loads(ended.stdout)


def test_random_flags_of_the_launcher():
    # Bindings and files are checked by a child with TensorFlow: `test_random_input_of_all_programs` has them.
    counts = random_cases('--cases=50', '--programs=launch', '--families=flags', secs=200.0)
    assert counts['cases'] == 50 and counts['refused'] > 20


@pytest.mark.chaos
def test_random_input_of_all_programs(capsys):
    counts = random_cases('--cases=1950')
    with capsys.disabled():
        sys.stdout.write(f'\n{counts}\n')
    assert counts['cases'] == 1950 and counts['refused'] > 1000 and counts['accepted'] > 100


@pytest.mark.chaos
@pytest.mark.parametrize(('program', 'arguments', 'start'), CASES, ids=[f'{case[0]}-{case[1]:.60}' for case in CASES])
def test_real_programs(tmp_path, program, arguments, start):
    (tmp_path / 'bytes.gin').write_bytes(b'x = \xff')
    (tmp_path / 'damaged').mkdir()
    (tmp_path / 'damaged' / 'dataset.json').write_text('{}')
    (tmp_path / 'done').mkdir()
    (tmp_path / 'done' / 'DONE').write_text('[')
    command = [sys.executable, '-m', *console_programs.words(program), *arguments.split()]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120.0)
    first = ended.stderr.splitlines()[0]
    assert ended.returncode == 2, ended.stderr
    assert re.match(rf'{console_programs.name(program)}( [a-z]+)?: error: {re.escape(start)}', first), first
    assert forked.Outcome(2, ended.stderr, 0.0).defect is None, ended.stderr


def test_there_are_fifty_real_programs():
    assert len(CASES) >= 50


DEFECTS = {
    'it hangs': (None, ''),
    'a traceback': (0, 'Traceback (most recent call last)\n'),
    'exit status 1': (1, 'tflearn-x: error: got a; need b\n'),
    '0 error lines': (2, 'no\n'),
    '2 error lines': (2, 'tflearn-x: error: got a; need b\n' * 2),
    'an error line that does not say what to do': (2, 'tflearn-x: error: got a\n'),
}


@pytest.mark.parametrize('defect', DEFECTS)
def test_defects_are_found(defect):
    code, output = DEFECTS[defect]
    assert forked.Outcome(code, output, 0.0).defect == defect


def test_a_fork_is_judged_by_its_end(tmp_path: pathlib.Path):
    output = tmp_path / 'output'
    assert forked.run(lambda: 1 / 0, output, 30.0).defect == 'a traceback'
    assert forked.run(lambda: None, output, 30.0).accepted
    assert forked.run(lambda: os.kill(os.getpid(), 9), output, 30.0).defect == 'exit status -9'
    assert forked.run(lambda: os.read(os.pipe()[0], 1), output, 0.2).defect == 'it hangs'
