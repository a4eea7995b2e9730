"""The commands of tflearn data: gin statements of those that are jobs, and what the others do."""

import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from tflearn.core import extensions, preflight
from tflearn.core.errors import UserValueError
from tflearn.core.verbs import values_of

from . import job_flags

# The commands that are no jobs, and the groups of their flags.
COMMANDS = {
    'describe': ('episodes', 'describe'),
    **dict.fromkeys(('merge', 'filter', 'copy'), ('episodes', 'new_episodes')),
    **{command: ('episodes', 'new_episodes', command) for command in ('split', 'convert')},
    **{command: (command, 'log', 'new_episodes') for command in ('import', 'join')},
}
_FILTERS = ('min_return', 'max_return', 'max_episodes')
_JOINING = ('window_secs', 'default_reward', 'combine', 'until', 'settle_secs', 'last_secs', 'outages', 'weigh_delays')


def _record_bindings() -> Sequence[str]:
    values = flags.FLAGS
    if not values.output:
        raise UserValueError('got no --output; need a directory for the episodes, such as --output=data/expert')
    job_flags.make_local('output')
    if values.episodes and values.steps:
        raise UserValueError(f'got --episodes={values.episodes} and --steps={values.steps}; need one of them')
    names = ('num_environments', 'policy', 'train_step', 'epsilon', 'seed', 'compress', 'log_probabilities', 'output')
    quota = job_flags.statements('record.Quota', num_episodes='episodes', num_steps='steps')
    quota += ['tflearn.jobs.record.record.quota = @tflearn.jobs.record.Quota()'] if quota else []
    return ['import tflearn.jobs.record', *quota, *job_flags.statements('record.record', *names)]


def _extract_bindings() -> Sequence[str]:
    if not flags.FLAGS.output:
        raise UserValueError('got no --output; need a new directory for the episodes, such as --output=data/replay')
    job_flags.make_local('output')
    return job_flags.statements('record.extract', 'output', 'compress', 'running')


# The commands that are jobs: arguments of `job_setup.main`.
JOBS: dict[str, dict[str, Any]] = {
    'record': {
        'groups': ('policy', 'record'),
        'bindings': _record_bindings,
        'shared': lambda: {'make_environment': 'evaluate.make_environment'},
    },
    'extract': {'groups': ('extract',), 'bindings': _extract_bindings, 'shared': job_flags.shared_with_server},
}


def run(command: str, values: flags.FlagValues) -> int:
    """Runs a command of `COMMANDS`."""
    if command in ('import', 'join'):
        text = _import_logs(command, values)
    else:
        _check(command, values)
        text = _read(command, values)
    print(text)
    return 0


def _check(command: str, values: flags.FlagValues) -> None:
    for name in ('data',) if command == 'describe' else ('data', 'output'):
        if not values[name].value:
            raise UserValueError(f'got no --{name}; need a directory, such as --{name}=data/expert')
    given = [f'--{name}' for name in _FILTERS if values[name].value is not None]
    if command == 'filter' and not given:
        raise UserValueError(f'got no filter; need at least one of {", ".join(f"--{name}" for name in _FILTERS)}')
    if command == 'merge' and given:
        raise UserValueError(f'got {given[0]} to merge by; need none, since merge takes all episodes; use filter')
    if command == 'split' and not 0 < (values.share or 0) <= 1:
        raise UserValueError(f'got --share={values.share}; need a number above 0 and at most 1, such as --share=0.2')


def _read(command: str, values: flags.FlagValues) -> str:
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.jobs import record

    filters = values_of(values, *_FILTERS, 'max_damaged')
    if command == 'describe':
        job_flags.make_local('picture', values=values)
        return record.describe(values.data, pathlib.Path(values.picture) if values.picture else None, **filters)
    job_flags.make_local('output', values=values)
    output = pathlib.Path(values.output)
    if command == 'convert':
        return record.convert(values.data, output, values.format, values.compress, **filters)
    if command == 'split':
        job_flags.make_local('earlier', values=values)
        settings = values_of(values, 'share', 'by', 'compress', 'rounds')
        settings['earlier'] = pathlib.Path(values.earlier) if values.earlier else None
        return extensions.load('split').split_files(values.data, output, settings, **filters)
    return record.copy(values.data, output, values.compress, **filters)


def _import_logs(command: str, values: flags.FlagValues) -> str:
    source = 'from' if command == 'import' else 'decisions'
    job_flags.need(values, source, 'columns', 'output', *(['outcomes'] if command == 'join' else []))
    importing = extensions.load('import')
    outcomes = {**values_of(values, *_JOINING), 'paths': values.outcomes} if command == 'join' else None
    job_flags.make_local('columns', 'output', 'vocabularies', values=values)
    return importing.import_logs(
        values[source].value,
        pathlib.Path(values.columns),
        pathlib.Path(values.output),
        pathlib.Path(values.vocabularies) if values.vocabularies else None,
        values.compress,
        outcomes,
        refused=values.refuse,
        max_bad_rows=values.max_bad_rows,
    )
