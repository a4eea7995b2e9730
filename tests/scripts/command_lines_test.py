"""The command lines of programs without a gin file: their help, and mistakes, which take one line."""

import re

import pytest

from tests.testing import command_lines, console_programs

NO_RUN = '--root_dir=/tmp/no_run'
WITH_ROOT = ('export', 'train', 'evaluate', 'supervise', 'serve')


def cases(*given):
    """Marks the cases of a program that an extension brings."""
    mark = pytest.mark.extensions
    return [pytest.param(*case, marks=mark) if str(case[0]).startswith('serve') else case for case in given]


def run(program, *arguments):
    return command_lines.run(program, *arguments, timeout=120.0)


@pytest.mark.parametrize(
    ('command', 'beginning', 'flags'),
    cases(
        ('serve --help', 'tflearn-serve: Serves the policies that a run exports', 'port batching tls_client_ca'),
        ('serve --helpfull', 'tflearn-serve: Serves the policies that a run exports', 'root_dir stop_timeout_secs'),
        ('export --help', 'tflearn export: Makes a full model of one train step', 'root_dir policy train_step output'),
        ('export --help', 'tflearn export: ', 'batch_size format observations'),
        ('data copy --help', 'tflearn data copy: ', 'data min_return max_damaged output'),
        ('data join --help', 'tflearn data join: ', 'decisions outcomes columns refuse output compress'),
        ('evaluate --data=x --help', 'tflearn-evaluate: ', 'data policy gamma output'),
    ),
)
def test_help_lists_the_flags(command, beginning, flags):
    ended = run(*command.split())
    assert (ended.returncode, ended.stderr) == (0, '')
    assert ended.stdout.startswith(beginning)
    for flag in flags.split():
        assert f'  --{flag}\n' in ended.stdout
    assert '--gin_file' not in ended.stdout.replace('a gin file', '')


def test_help_names_the_commands_and_how_an_evaluation_reads_data():
    ended = run('data', '--help')
    assert (ended.returncode, ended.stderr) == (0, '')
    for command in ('record', 'extract', 'describe', 'merge', 'filter', 'copy', 'convert', 'import'):
        assert f'tflearn data {command}  ' in ended.stdout
    assert '--data=DIR' in run('evaluate', '--help').stdout


@pytest.mark.parametrize('command', ['data --help', 'data record --help', 'data copy --help'])
def test_help_keeps_the_lines_of_a_table(command):
    assert '\ntflearn data merge      episodes of all --data -> --output\n' in run(*command.split()).stdout


def test_help_of_a_program_without_flags_of_its_own():
    assert run('help', '--help').stdout.endswith(
        'Flags:\n\n  --help\n      Lists these flags. --version prints the versions.\n'
    )


@pytest.mark.parametrize(
    ('command', 'message'),
    cases(
        ('serve', 'got no --root_dir; need '),
        ('serve --root_dir=x --versions=new', 'got --versions=new; need train steps'),
        ('serve --root_dir=x --apprentice', 'got --apprentice with no --decision_log; need a --decision_log'),
        ('serve --root_dir=x --allow_nonfinite --decision_log=y', 'got --allow_nonfinite with --decision_log'),
        (f'serve --root_dir=x --tls_key={__file__}', 'got a part of --tls_certificate, --tls_key'),
        ('serve --root_dir=x --policies=../x', 'got --policies=../x; need names of directories'),
        ('serve --root_dir=x --port=99999', 'got a wrong flag: '),
        ('serve --root_dir=x --lame_duck_secs=60', 'got --lame_duck_secs=60 and --stop_timeout_secs=30'),
        ('serve --root_dir=x --tls_key=no_file', 'got --tls_key=no_file; need a file'),
        ('data show', "got 'show'; need one of record, extract, describe, merge, filter, copy, split, convert, import"),
        ('data describe', 'got no --data; need a directory'),
        ('data copy --data=x', 'got no --output; need a directory'),
        ('data filter --data=x --output=y', 'got no filter; need at least one of --min_return'),
        ('data merge --data=x --output=y --min_return=3', 'got --min_return to merge by; need none'),
        ('data copy --data=x --output=y --share=0.5', "got a wrong flag: Unknown command line flag 'share'"),
        ('data describe --data=x --max_episodes=0', 'got a wrong flag: flag --max_episodes=0'),
        ('evaluate --data=x', 'got no --root_dir; need a directory'),
        (f'evaluate {NO_RUN} --data=', 'got an empty --data; need a directory of episodes'),
        (f'evaluate {NO_RUN} --data=x --gamma=2', 'got a wrong flag: flag --gamma=2'),
        (f'evaluate {NO_RUN} --data=x --gamma=nan', 'got a wrong flag: flag --gamma=nan: need a number'),
        (f'evaluate {NO_RUN} --data=x --gamma=x', 'got a wrong flag: flag --gamma=x: need a number: Discount of'),
        (
            f'evaluate {NO_RUN} --policy=best --train_step=latest',
            'got a wrong flag: flag --train_step=latest: need an integer: Train step of the version, if not --policy',
        ),
        (f'evaluate {NO_RUN} --data=x --gin_file=dqn_cartpole', 'got a wrong flag: Unknown command line'),
        ('export', 'got no --root_dir; need '),
        ('export --root_dir=x --format=int4', 'got a wrong flag: flag --format=int4'),
        pytest.param(
            'export --root_dir=s3://me:key@x/y',
            'got a URL of s3 with credentials or a query; need them where s3 ',
            marks=pytest.mark.extensions,
        ),
        ('export --root_dir=x --output=gs://x/y', "got --output='gs://x/y', which is a URL; need a path"),
        ('export --root_dir=x --output=[y]', "got --output='[y]', which is '/"),
        *((f'{program} --root_dir=a\\b', r"got --root_dir='a\\b', which is '/") for program in WITH_ROOT),
        ('data copy --data=x --output=y*', "got --output='y*', which is '/"),
        ('export --root_dir=no_such_run', 'got no policy in '),
        ('supervise --root_dir=x', 'got no --job; need the name of a job'),
        ('supervise --root_dir=/no_run --job=train', 'got /no_run without topology.json; need a run that was'),
    ),
)
def test_user_errors_take_one_line(command, message):
    program, *arguments = command.split()
    ended = run(program, *arguments)
    assert ended.returncode == 2
    begin = rf'{console_programs.name(program)}( \w+)?: error: {re.escape(message)}'
    assert re.match(begin, ended.stderr.splitlines()[-1]), ended.stderr
    assert 'Traceback' not in ended.stderr
