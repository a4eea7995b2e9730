"""Random bad input for all programs: flags, gin bindings, addresses and damaged files.

    python -m tests.chaos.bad_input --cases=1950 --seed=0

Each case runs a real program in a fork of this process, up to the point where the job would begin to work. It is
accepted, or refused with exit status 2 and one line that says what to do. `--only=N` repeats one case, and prints all
that it wrote. `--families=flags,bindings` are the cases that need no TensorFlow.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from tests.chaos import bad_reads, bad_values, forked
from tests.testing import certificates, console_programs
from tflearn.core import preflight

DEADLINE_SECS = 90.0  # on a machine that other programs use, too
_ROOT = ('--root_dir=run',)
_RUN = (*_ROOT, '--gin_file=dqn_cartpole')
_MEMORY = '/dev/shm'  # a file system without a disk
_NEW = ('--output=new',)
# By program: its module, and flags that it accepts.
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    'launch': ('launch', (*_RUN, '--nowarm_start')),
    'replay_server': ('replay_server', _RUN),
    'collect': ('collect', _RUN),
    'train': ('train', _RUN),
    'evaluate': ('evaluate', _RUN),
    'synchronous': ('synchronous', _RUN),
    'train_offline': ('train_offline', (*_RUN, '--data=data')),
    'data_evaluation': ('evaluate', (*_ROOT, '--data=data')),
    'serve': ('serve', _ROOT),
    'export': ('export', _ROOT),
    'record': ('data', ('record', *_RUN, *_NEW)),
    'extract': ('data', ('extract', *_RUN, *_NEW)),
    'describe': ('data', ('describe', '--data=data')),
    'merge': ('data', ('merge', '--data=data', *_NEW)),
    'filter': ('data', ('filter', '--data=data', *_NEW, '--min_return=1')),
    'copy': ('data', ('copy', '--data=data', *_NEW)),
    'convert': ('data', ('convert', '--data=data', *_NEW)),
    'doctor': ('doctor', ('run',)),
}
CONFIGURED = ('replay_server', 'collect', 'train', 'evaluate', 'synchronous', 'train_offline', 'record', 'extract')
PLAIN = ('launch',)  # it loads no TensorFlow
# Jobs that would begin to work: they end as soon as gin has made their arguments.
_JOBS = (
    *('replay_server', 'collect', 'train', 'evaluate', 'synchronous', 'train_offline', 'serve'),
    *('record.record', 'record.extract'),
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, its arguments, and what happens to its files before it starts."""

    program: str
    arguments: Sequence[str]
    prepare: Callable[[], object] = lambda: None
    environment: tuple[tuple[str, str], ...] = ()

    def run(self, directory: pathlib.Path) -> None:
        """Runs the program in `directory`."""
        os.chdir(directory)
        os.environ.update(self.environment)
        self.prepare()
        if self.program == 'function':
            return
        module, _ = PROGRAMS[self.program]
        with _until_work(self.program):
            console_programs.main(module, *self.arguments)


@contextlib.contextmanager
def _until_work(program: str) -> Any:
    """Replaces the jobs by functions that check what they are given, and end."""
    with contextlib.ExitStack() as stack:
        if program == 'launch':
            stack.enter_context(mock.patch('tflearn.launch.local._work', _reports))
        elif program not in PLAIN:
            for name in _JOBS:
                module, _, function = name.partition('.')
                job = importlib.import_module(f'tflearn.jobs.{module}')
                stack.enter_context(mock.patch.object(job, function or module, _accepting(job, function or module)))
        yield


def _reports(supervisor: Any, *_: object) -> None:
    """Reads what a view of the run would show; instead of starting it."""
    from tflearn.launch.reports import RunReport

    report = RunReport(tuple(process.report() for process in supervisor._processes), 1.0)
    sys.stdout.write(f'{report.metrics()} {report.secs_left} {[job.summary() for job in report.jobs]}\n')
    os._exit(0)


def _accepting(module: Any, name: str) -> Callable[..., None]:
    """Returns a job that makes the environment, if it has one, and what else its arguments say, and ends."""
    job = getattr(module, name)

    @functools.wraps(job)
    def accept(**arguments: Any) -> None:
        if run := arguments.get('run'):
            run.is_done()
        if 'make_environment' in arguments:
            environment = arguments['make_environment'](1, 0)
            environment.close()
        if run:
            run.hooks.on_restored()
            run.hooks.describe()
        if tls := getattr(arguments.get('server_options'), 'tls', None):
            tls.credentials()

    return accept


class Maker:
    """Makes random cases, each from a generator of its own.

    Attributes:
      flags: the flags of each program.
      names: what can be bound, by gin file.
    """

    def __init__(self, flags: dict[str, list[str]], names: dict[str, list[str]], families: Sequence[str]):
        """`families` are those that cases are drawn from."""
        self.flags, self.names, self.families = flags, names, families

    def case(self, seed: int, number: int) -> Case:
        """Returns a case."""
        rng = random.Random(f'{seed}/{number}')
        return getattr(self, f'_{rng.choice(self.families)}')(rng)

    def _flags(self, rng: random.Random) -> Case:
        program = rng.choice([name for name in PROGRAMS if self.flags.get(name)])
        return self._with_flags(rng, program, bad_values.text)

    def _addresses(self, rng: random.Random) -> Case:
        address = rng.choice(bad_values.ADDRESSES)
        program = rng.choice(['launch', *(name for name in CONFIGURED if self.flags.get(name))])
        known = [*PROGRAMS[program][1], f'--coordinator_address={address}']
        if program in ('train', 'collect', 'evaluate') and rng.random() < 0.5:
            binding = {
                'train': f'train.Data.addresses=[{address!r}]',
                'collect': f'collect.collect.data_addresses=[{address!r}]',
                'evaluate': f'evaluate.EvaluateOptions.served_at={address!r}',
            }[program]
            more = {'evaluate': ["--gin_bindings=evaluate.EvaluateOptions.follow='served'"]}.get(program, [])
            known = [*PROGRAMS[program][1], f'--gin_bindings={binding}', *more]
        return Case(program, known)

    def _with_flags(self, rng: random.Random, program: str, value: Callable[[random.Random], str]) -> Case:
        arguments = list(PROGRAMS[program][1])
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            flag = rng.choice(self.flags[program])
            if rng.random() < 0.1:
                flag = bad_values.misspelt(rng, flag)
            kind = rng.randrange(12)
            if kind == 0:
                arguments.append(f'--{flag}')
            elif kind == 1:
                arguments.append(f'--no{flag}')
            elif kind == 2:
                arguments.append(value(rng))
            elif kind == 3 and len(arguments) > 1:
                arguments.pop(rng.randrange(len(arguments)))
            else:
                arguments.append(f'--{flag}={value(rng)}')
        return Case(program, arguments)

    def _bindings(self, rng: random.Random) -> Case:
        program = rng.choice(['launch', *(name for name in CONFIGURED if self.flags.get(name))])
        gin_file = rng.choice([*self.names])
        bindings = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            name = rng.choice(self.names[gin_file])
            kind = rng.randrange(10)
            if kind == 0:
                name = bad_values.misspelt(rng, name)
            elif kind == 1:
                name = f'{rng.choice(["scope", "a/b", "", "learning_rate"])}/{name}'
            statement = f'{name} = {rng.choice(bad_values.GIN_VALUES)}'
            bindings.append(rng.choice(bad_values.GIN_STATEMENTS) if kind in (2, 3) else statement)
        flags = [flag for flag in PROGRAMS[program][1] if not flag.startswith('--gin_file=')]
        return Case(program, [*flags, f'--gin_file={gin_file}', *(f'--gin_bindings={text}' for text in bindings)])

    def _files(self, rng: random.Random) -> Case:
        """A file is damaged that the program reads."""
        program, pattern, more = rng.choice(
            [
                ('launch', 'run/status/*.json', ()),
                ('launch', 'run/DONE', ()),
                ('launch', 'run.gin', ('--gin_file=run.gin',)),
                ('train', 'run.gin', ('--gin_file=run.gin',)),
                ('train', 'run/DONE', ()),
                ('train', 'run/config.gin', ()),
                ('doctor', 'run/summaries/train/*', ()),
                ('serve', 'tls/*', ('--tls_certificate=tls/a.pem', '--tls_key=tls/a.key', '--tls_client_ca=tls/a.pem')),
                *[('describe', 'data/*', (f'--max_damaged={n}',)) for n in (0, 0, 3, 1000)],
                *[(name, 'data/*', ()) for name in ('merge', 'copy', 'convert', 'filter')],
                ('data_evaluation', 'data/*', ()),
                ('data_evaluation', 'run/policies/greedy_policy/**/*', ()),
                ('export', 'run/policies/greedy_policy/**/*', ('--batch_size=2', '--output=new')),
                ('export', 'run/policies/greedy_policy/**/*', ('--product', '--output=new')),
                ('export', 'observations.npz', ('--format=tflite_int8', '--observations=observations.npz')),
            ]
        )
        if not self.flags.get(program):
            return self._flags(rng)
        seed = rng.random()
        return Case(program, [*PROGRAMS[program][1], *more], functools.partial(_damage, pattern, seed))

    def _functions(self, rng: random.Random) -> Case:
        """What reads files and addresses by itself."""
        return Case('function', (), functools.partial(bad_reads.case, rng.random()))


def _damage(pattern: str, seed: float) -> None:
    rng = random.Random(seed)
    files = sorted(path for path in pathlib.Path().glob(pattern) if path.is_file())
    sys.stdout.write(f'{bad_values.damage(rng, rng.choice(files))}\n')


def fixture(directory: pathlib.Path, with_tensorflow: bool) -> None:
    """Makes the files of a run, of a data set and others, all of which are right."""
    run = directory / 'run'
    (run / 'status').mkdir(parents=True)
    for job in ('train', 'collect_0', 'replay_server', 'evaluate', 'launch'):
        status = {'job': job, 'pid': 1, 'state': 'running', 'time': 4e9, 'train_step': 7, 'env_steps_per_sec': 7.5}
        (run / 'status' / f'{job}.json').write_text(json.dumps(status))
    done = {'reason': 'num_train_steps 7', 'train_step': 7, 'policy': 'policies/greedy_policy/1', 'seconds': 3.0}
    (run / 'DONE').write_text(json.dumps({**done, 'evaluation': {'mean_return': 3.5, 'num_episodes': 3}}))
    (directory / 'tls').mkdir()
    certificates.make(directory / 'tls', 'a')
    (run / 'config.gin').write_text('train.train.x = 1\n')
    (directory / 'run.gin').write_text((pathlib.Path('gin') / 'dqn_cartpole.gin').read_text())
    if with_tensorflow:
        _tensorflow_fixture(directory)


def _tensorflow_fixture(directory: pathlib.Path) -> None:
    import numpy as np
    import tensorflow as tf

    from tests.data import data_sets
    from tests.testing import served_policies

    data_sets.write(directory / 'data', 60)
    with tf.summary.create_file_writer(str(directory / 'run' / 'summaries' / 'train')).as_default():
        for step in range(9):
            tf.summary.scalar('loss', 0.5, step)
    served_policies.Publisher(directory / 'run' / 'policies').publish(1)
    np.savez(directory / 'observations.npz', observation=np.zeros((9, 4), np.float32))


def known_flags(directory: pathlib.Path, programs: Sequence[str]) -> dict[str, list[str]]:
    """Returns the names of each program's flags, by its --help."""
    found = {}
    for program in programs:
        arguments = ['--help']
        if PROGRAMS[program][0] == 'data':
            arguments.insert(0, PROGRAMS[program][1][0])
        elif program == 'data_evaluation':
            arguments.insert(0, '--data=data')
        case = Case(program, arguments)
        text = forked.run(functools.partial(case.run, directory), directory / 'help', DEADLINE_SECS).output
        lines = text.splitlines()
        found[program] = [line.strip().removeprefix('--').split('=')[0] for line in lines if line.startswith('  --')]
        assert found[program], text
    return found


def known_names(gin_files: Sequence[str]) -> dict[str, list[str]]:
    """Returns what can be bound in a run, by gin file."""
    from tflearn.config import checks, files, names
    from tflearn.jobs.train import train

    found = {}
    for gin_file in gin_files:
        job = names.Configurable(train, 'tflearn.jobs.train', 'train')
        statements, jobs = checks.read_run(files.resolve(gin_file), (), job)
        found[gin_file] = sorted(checks._names(checks.reach(statements.bindings, jobs), jobs, checks.FLAG))
    return found


def _run_case(case: Case, source: pathlib.Path, directory: pathlib.Path) -> forked.Outcome:
    place = bad_values.copied(source, directory / 'case')
    bad_values.make_paths(place / 'odd')
    try:
        return forked.run(functools.partial(case.run, place), directory / 'output', DEADLINE_SECS)
    finally:
        shutil.rmtree(place)


def main() -> int:
    """Runs the cases, prints a JSON object of counts and defects; returns 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cases', type=int, default=1950)
    parser.add_argument('--seed', type=int, default=int(os.environ.get('TFLEARN_TEST_SEED', '0')))
    parser.add_argument('--first', type=int, default=0, help='the number of the first case')
    parser.add_argument('--only', type=int, default=None)
    parser.add_argument('--families', default='flags,flags,bindings,bindings,addresses,files,functions')
    parser.add_argument('--programs', default=','.join(PROGRAMS), help='launch loads no TensorFlow')
    options = parser.parse_args()
    programs = options.programs.split(',')
    with_tensorflow = bool(set(programs) - set(PLAIN))
    if with_tensorflow:
        jobs = sorted({job.partition('.')[0] for job in (*_JOBS, 'export')})
        preflight.import_quietly('tensorflow', 'gym', 'gymnasium', *(f'tflearn.jobs.{job}' for job in jobs))
    for name in (
        *(console_programs.words(module)[0] for module, _ in PROGRAMS.values()),
        'tflearn.environments.registry',
    ):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as name:
        directory = pathlib.Path(name)
        source = directory / 'fixture'
        source.mkdir()
        made = forked.run(functools.partial(fixture, source, with_tensorflow), directory / 'output', DEADLINE_SECS)
        assert made.accepted, made.output
        flags = known_flags(directory, programs)
        maker = Maker(flags, known_names(['dqn_cartpole', 'ppo_pendulum', 'sac_pendulum'][: 1 + 2 * with_tensorflow]),
                      options.families.split(','))  # fmt: skip
        numbers = range(options.first, options.first + options.cases) if options.only is None else [options.only]
        counts: collections.Counter[str] = collections.Counter()
        slowest = 0.0
        for number in numbers:
            case = maker.case(options.seed, number)
            outcome = _run_case(case, source, directory)
            slowest = max(slowest, outcome.secs)
            counts['defects' if outcome.defect else 'accepted' if outcome.accepted else 'refused'] += 1
            if number % 100 == 99:
                sys.stderr.write(f'{number + 1}: {dict(counts)}\n')
            if outcome.defect or options.only is not None:
                shown = outcome.output[-1500:] if options.only is None else outcome.output
                arguments = f'{list(case.arguments)!r:.600}'
                sys.stderr.write(f'case {number}: {outcome.defect}: {case.program} {arguments}\n{shown}\n')
                sys.stderr.flush()
    summary = {'seed': options.seed, 'cases': len(numbers), **counts, 'slowest_secs': round(slowest, 1)}
    sys.stdout.write(json.dumps(summary) + '\n')
    return int(counts['defects'] > 0)


if __name__ == '__main__':
    sys.exit(main())
