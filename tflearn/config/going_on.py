"""Continues a run that has ended: compares its stop conditions and settings with those of before.

A run that ended goes on if the condition that ended it was raised, or removed. The conditions are read from the gin
files without TensorFlow, so that launch and all jobs, which may start in any order, find the same.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from tflearn.config import preview
from tflearn.config.names import Configurable
from tflearn.config.reader import Binding, Macro, Reference, join_scope
from tflearn.core.errors import UserValueError
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import RunDir, read_json

# By the condition's name, which begins the reason in DONE: the functions whose parameter it is.
_STOP, _DATA_STOP = 'stop_conditions.StopConditions', 'stop_conditions.DataStopConditions'
_CONDITIONS = {
    'num_train_steps': (_STOP,),
    'max_env_steps': (_STOP, 'collect_settings.CollectOptions'),
    'max_secs': (_STOP,),
    'target_return': ('evaluate.evaluate',),
    'max_epochs': (_DATA_STOP,),
    'patience': (_DATA_STOP,),
}
_COUNTS = {'num_train_steps': 'train_step', 'max_env_steps': 'env_steps', 'max_secs': 'seconds'}  # in DONE
# Settings of how a run begins.
_BEGINNING = ('train_settings.Initial', 'demonstrations.Cloning')

Conditions = Mapping[str, float | None]


def begin(run_dir: RunDir, now: Sequence[Binding] | None, job: str) -> list[str]:
    """Lets a finished run go on if its end has moved, before any job looks for it.

    Args:
      now: its effective bindings, see `preview.effective`; None: only the jobs will know.
      job: the full name of the module of one of the run's jobs.

    Returns:
      Lines that name what changed since the configuration was saved, and the effect.
    """
    if now is None or not (run_dir.config.exists() or run_dir.done.exists()):
        return []
    goes_on = reopen(run_dir, _conditions(now))
    finished = not goes_on and run_dir.done.exists()
    return [f'changed since: {text}{_effect(target, finished)}' for target, text in _changes(run_dir, now, job)]


def reopen(run_dir: RunDir, conditions: Conditions) -> bool:
    """Takes the marks of its end from a finished run if the condition that ended it was raised. Nothing else changes.

    DONE is kept as DONE-1, DONE-2, ...

    Args:
      conditions: the stop conditions now; those that are missing or None do not hold.
    """
    done = read_json(run_dir.done, 'reason') or read_json(run_dir.train_result, 'reason')
    request = read_json(run_dir.stop_request)
    is_remote = run_dir.location != str(run_dir.root)  # whose objects another job would bring back
    if done is None or is_remote or not _has_moved(request or done, done, conditions):
        return False
    # DONE last: a process that is killed in between decides in the same way when it is started again.
    run_dir.stop_request.unlink(missing_ok=True)
    run_dir.train_result.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another job was faster, or training alone had ended
        run_dir.done.rename(Numbered(run_dir.root, f'{run_dir.done.name}-{{}}').next_path())
    logging.info('the run continues: it had ended with %s', done['reason'])
    return True


def _has_moved(ended: Mapping[str, Any], counts: Mapping[str, Any], conditions: Conditions) -> bool:
    """Returns whether the condition that ended the run now lies ahead, and no other one is reached."""
    name, _, rest = str(ended['reason']).partition(' ')
    if name not in _CONDITIONS:  # somebody asked for the end
        return False
    try:
        old, new = float(rest.partition(' ')[0].rstrip(',:')), conditions.get(name)
    except ValueError:
        return False
    if new is not None and not float(f'{new:g}' if name == 'target_return' else new) > old:
        return False
    return not any(
        (end := conditions.get(condition)) is not None and (counts.get(count) or 0) >= end
        for condition, count in _COUNTS.items()
    )


def _conditions(bindings: Sequence[Binding]) -> dict[str, float | None]:
    """Returns the stop conditions that are bound to numbers; of several with one name the least."""
    found: dict[str, float | None] = {}
    for binding in bindings:
        if binding.target and not binding.scope and _origin(binding.target) in _CONDITIONS.get(binding.parameter, ()):
            value = _resolved(binding.value, bindings)
            if isinstance(value, int | float):
                found[binding.parameter] = min(value, found.get(binding.parameter) or value)
    return found


def _changes(run_dir: RunDir, now: Sequence[Binding], job: str) -> list[tuple[str, str]]:
    """Returns the settings that differ from the saved configuration: the function's name, and the setting as text."""
    try:
        before = preview.effective(run_dir.config, (), job)
    except UserValueError:  # of another version, or damaged: the job says so
        return []
    if before is None:
        return []
    old, new = _values(before), _values(now)
    return [
        (name.rpartition('.')[0].rpartition('/')[2], f'{name} {old.get(name, "unset")} -> {new.get(name, "unset")}')
        for name in [*new, *(old.keys() - new.keys())]
        # A job that takes the bindings of other jobs has saved them as its own too.
        if old.get(name) != new.get(name) and not (name not in new and name.startswith(_own_names(job)))
    ]


def _own_names(job: str) -> str:
    name = job.rpartition('.')[2]
    return f'{name}.{name}.'


def _values(bindings: Sequence[Binding]) -> dict[str, str]:
    return {
        join_scope(binding.scope, f'{_origin(binding.target)}.{binding.parameter}'): _shown(
            _resolved(binding.value, bindings)
        )
        for binding in bindings
        if binding.target
    }


def _shown(value: Any) -> str:
    if isinstance(value, Reference) and value.target:
        name = join_scope(value.scope, _origin(value.target))
        return f'@{name}{"()" if value.evaluate else ""}'
    return repr(value)


def _resolved(value: Any, bindings: Sequence[Binding]) -> Any:
    for _ in range(len(bindings)):
        if not isinstance(value, Macro):
            break
        value = next((each.value for each in bindings if not each.parameter and each.written == value.name), None)
    return value


def _origin(target: Configurable) -> str:
    """Returns the name of a function with the last part of the module that it is written in."""
    function = target.function
    return f'{str(function.__module__).rpartition(".")[2]}.{getattr(function, "__name__", target.attribute)}'


def _effect(function: str, finished: bool) -> str:
    if finished:
        return ' (no effect: the run is finished)'
    if function in _BEGINNING:
        return ' (no effect: the run has begun already)'
    return ' (takes effect from now; refused if a checkpoint does not fit it)'
