"""The flags of tflearn-data's commands, and what `describe` and `copy` do with them."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from tflearn.core.errors import UserValueError
from tflearn.files import log_files
from tflearn.files.run_dir import local_path

from . import job_flags, preflight

COMMANDS = ('describe', 'merge', 'filter', 'copy', 'split', 'convert', 'import', 'join')
FORMATS = ('tflearn', 'minari', 'rlds')
REFUSALS = ('missing', 'unknown', 'duplicate', 'disorder')
_FILTERS = ('min_return', 'max_return', 'max_episodes')


def define_policy() -> None:
    """Defines the flags of a policy that acts."""
    flags.DEFINE_string(
        'policy',
        'greedy_policy',
        "Name of the run's exported policy, or best; or the path, with a /, of a run, or of a SavedModel of tflearn or "
        "of TF-Agents' PolicySaver; or MODULE:FUNCTION, a Python function of a batch of observations; or random.",
    )
    flags.DEFINE_integer(
        'train_step', None, "Train step of the version; default: the run's result, else the newest.", 0
    )


def define_record() -> None:
    """Defines the flags of `record`."""
    flags.DEFINE_string('output', None, 'Directory of the episodes; an earlier call may have begun it. Required.')
    flags.DEFINE_integer('episodes', None, 'Complete episodes in --output; default: 100.', lower_bound=1)
    flags.DEFINE_integer(
        'steps', None, 'Environment steps of the complete episodes in --output, instead of --episodes.', 1
    )
    flags.DEFINE_integer('num_environments', 8, 'Environments stepped together.', lower_bound=1)
    define_policy()
    job_flags.define_number('epsilon', 0.0, 'Share of random actions.', 0.0, 1.0)
    flags.DEFINE_integer('seed', 0, 'Seed of the environments and the random actions.')
    flags.DEFINE_bool('compress', False, 'Compresses the files with gzip.')
    flags.DEFINE_bool(
        'log_probabilities', False, 'Records the log-probability of each action, for tflearn-evaluate --data.'
    )


def record_bindings() -> Sequence[str]:
    """Returns the gin statements that the flags of `record` stand for."""
    if not flags.FLAGS.output:
        raise UserValueError('got no --output; need a directory for the episodes, such as --output=data/expert')
    output = str(local_path(flags.FLAGS.output, '--output'))
    if flags.FLAGS.episodes and flags.FLAGS.steps:
        raise UserValueError(f'got --episodes={flags.FLAGS.episodes} and --steps={flags.FLAGS.steps}; need one of them')
    given = {name: flags.FLAGS[flag].value for name, flag in (('num_episodes', 'episodes'), ('num_steps', 'steps'))}
    quota = [f'tflearn.jobs.record.Quota.{name} = {value}' for name, value in given.items() if value]
    names = ('num_environments', 'policy', 'train_step', 'epsilon', 'seed', 'compress', 'log_probabilities')
    # What is not given is left to the gin file.
    values = {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}
    lines = [f'{name} = {value!r}' for name, value in {'output': output, **values}.items()]
    lines += ['quota = @tflearn.jobs.record.Quota()'] if quota else []
    return ['import tflearn.jobs.record', *quota, *(f'tflearn.jobs.record.record.{line}' for line in lines)]


def define_extract() -> None:
    """Defines the flags of `extract`."""
    flags.DEFINE_string('output', None, 'A new directory of episodes. Required.')
    flags.DEFINE_bool('running', False, 'Reads the running replay servers (--coordinator_address), not checkpoints.')
    flags.DEFINE_bool('compress', False, 'Compresses the files with gzip.')


def extract_bindings() -> Sequence[str]:
    """Returns the gin statements that the flags of `extract` stand for."""
    if not flags.FLAGS.output:
        raise UserValueError('got no --output; need a new directory for the episodes, such as --output=data/replay')
    values = {'output': str(local_path(flags.FLAGS.output, '--output')), 'compress': flags.FLAGS.compress}
    if flags.FLAGS.running:
        values['running'] = True
    return [f'tflearn.jobs.record.extract.{name} = {value!r}' for name, value in values.items()]


# What `job_setup.main` needs of each command that a gin file configures.
JOBS: dict[str, dict[str, Any]] = {
    'record': {
        'define_flags': define_record,
        'bindings': record_bindings,
        'shared': lambda: {'make_environment': 'evaluate.make_environment'},
    },
    'extract': {'define_flags': define_extract, 'bindings': extract_bindings, 'shared': job_flags.shared_with_server},
}


def define_episodes() -> None:
    """Defines the flags of the episodes that are read."""
    flags.DEFINE_multi_string('data', [], "Directory of episodes, or a pattern such as 'data/*'; may be repeated.")
    job_flags.define_number('min_return', None, 'The smallest return of an episode.')
    job_flags.define_number('max_return', None, 'The largest return of an episode.')
    flags.DEFINE_integer('max_episodes', None, 'Episodes to read.', 1)
    flags.DEFINE_integer('max_damaged', 0, 'Maximum number of damaged records; they are skipped.', 0)


def define_read() -> None:
    """Defines the flags of all commands but `record`."""
    define_episodes()
    flags.DEFINE_string('picture', None, 'describe: a PNG file for histograms of returns and lengths.')
    flags.DEFINE_string('output', None, 'A new directory; of split, with train/ and held_out/.')
    job_flags.define_number('share', None, 'split: the share of episodes that are held out, above 0 and below 1.')
    flags.DEFINE_string('by', 'id', "split: id (a hash of the episode's name), time (the last ones), or a column.")
    flags.DEFINE_string('earlier', None, 'split: the --output of an earlier split, all of which is trained on now.')
    flags.DEFINE_enum('format', 'tflearn', FORMATS, 'convert: the format of --output; that of --data is recognized.')
    flags.DEFINE_bool('compress', False, 'merge, filter, copy, split, import: compresses the files with gzip.')
    define_import()
    flags.DEFINE_bool('help', False, 'Lists these flags.')


def define_import() -> None:
    """Defines the flags of `import`."""
    flags.DEFINE_multi_string('from', [], 'import: a log in CSV, Parquet or JSON lines; may be repeated.')
    flags.DEFINE_multi_string('decisions', [], 'join: a directory of decisions, or a file; may be repeated.')
    flags.DEFINE_multi_string('outcomes', [], 'join: a directory or file of outcomes; may be repeated.')
    flags.DEFINE_float('window_secs', None, 'join: seconds after a decision in which its outcomes count.', 0)
    flags.DEFINE_float('default_reward', None, 'join: the reward of a decision without an outcome in its window.')
    flags.DEFINE_enum('combine', 'last', ['first', 'sum', 'last'], 'join: of several outcomes of a decision.')
    flags.DEFINE_float('until', None, 'join: the end of the log [seconds since 1970]; default: the newest outcome.')
    flags.DEFINE_float('last_secs', None, 'join: seconds before the end of the log; decisions before are left out.', 0)
    flags.DEFINE_string('columns', None, 'import: a file in TOML that says what each column means.')
    flags.DEFINE_string('vocabularies', None, 'import: an earlier data set, whose numbers of categories are kept.')
    flags.DEFINE_integer('max_bad_rows', 0, 'import: bad rows that are left out, with their episodes.', 0)
    flags.DEFINE_multi_enum(
        'refuse', [], REFUSALS, 'import: makes rows bad that are only counted otherwise; may be repeated.'
    )


def read(command: str) -> None:
    """Runs a command of `COMMANDS`."""
    if command in ('import', 'join'):
        import_logs(command)
        return
    for name in ('data',) if command == 'describe' else ('data', 'output'):
        if not flags.FLAGS[name].value:
            raise UserValueError(f'got no --{name}; need a directory, such as --{name}=data/expert')
    given = [f'--{name}' for name in _FILTERS if flags.FLAGS[name].value is not None]
    if command == 'filter' and not given:
        raise UserValueError(f'got no filter; need at least one of {", ".join(f"--{name}" for name in _FILTERS)}')
    if command == 'merge' and given:
        raise UserValueError(f'got {given[0]} to merge by; need none, since merge takes all episodes; use filter')
    if command == 'split' and not 0 < (flags.FLAGS.share or 0) < 1:
        raise UserValueError(f'got --share={flags.FLAGS.share}; need a number above 0 and below 1, such as --share=0.2')
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.jobs import record

    filters: dict[str, Any] = {name: flags.FLAGS[name].value for name in (*_FILTERS, 'max_damaged')}
    data, compress = flags.FLAGS.data, flags.FLAGS.compress
    if command == 'describe':
        picture = flags.FLAGS.picture and local_path(flags.FLAGS.picture, '--picture')
        print(record.describe(data, picture, **filters))
        return
    output = local_path(flags.FLAGS.output, '--output')
    if command == 'convert':
        print(record.convert(data, output, flags.FLAGS.format, compress, **filters))
    elif command == 'split':
        earlier = flags.FLAGS.earlier and local_path(flags.FLAGS.earlier, '--earlier')
        settings = {'share': flags.FLAGS.share, 'by': flags.FLAGS.by, 'compress': compress, 'earlier': earlier}
        print(record.split(data, output, settings, **filters))
    else:
        print(record.copy(data, output, compress, **filters))


def import_logs(command: str) -> None:
    """Runs `import` or `join`."""
    source = 'from' if command == 'import' else 'decisions'
    job_flags.need(flags.FLAGS, source, 'columns', 'output', *(['outcomes'] if command == 'join' else []))
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.jobs import record

    values = flags.FLAGS
    if command == 'import':
        outcomes, paths = None, [local_path(path, '--from') for path in getattr(values, source)]
    else:
        names = ('window_secs', 'default_reward', 'combine', 'until', 'last_secs')
        outcomes = {name: values[name].value for name in names}
        outcomes['paths'] = log_files.find(values.outcomes, 'outcomes')
        paths = log_files.find(values.decisions, source)
    report = record.import_logs(
        paths,
        local_path(values.columns, '--columns'),
        local_path(values.output, '--output'),
        values.vocabularies and local_path(values.vocabularies, '--vocabularies'),
        values.compress,
        outcomes,
        refused=values.refuse,
        max_bad_rows=values.max_bad_rows,
    )
    print(report)
