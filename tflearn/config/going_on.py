"""Continues a run that has ended: compares its stop conditions and settings with those of before.

A run that ended goes on if the condition that ended it was raised, or removed; one that its program
stopped, if one of its stop conditions was. Launch and all jobs, which may start in any order, find
the same.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import logging

from tflearn.files import messages
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import RunDir, read_json

# By the condition's name, which begins the reason in DONE: the functions whose parameter its last
# part is.
_STOP, _DATA_STOP = 'stop_conditions.StopConditions', 'stop_conditions.DataStopConditions'
CONDITIONS = {
    'num_train_steps': (_STOP,),
    'max_env_steps': (_STOP,),
    'CollectOptions.max_env_steps': ('collect_settings.CollectOptions',),
    'max_secs': (_STOP,),
    'target_return': ('evaluate.evaluate',),
    'Plateau.patience': ('evaluate_settings.Plateau',),
    'max_epochs': (_DATA_STOP,),
    'patience': (_DATA_STOP,),
}
# In DONE.
_COUNTS = {'num_train_steps': 'train_step', 'max_env_steps': 'env_steps', 'max_secs': 'seconds'}
# Settings of how a run begins.
_BEGINNING = ('train_settings.Initial', 'demonstrations.Cloning')

Conditions = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Effective:
    """The effective bindings of a run, as plain values, which JSON can hold.

    Attributes:
      conditions: the stop conditions that are bound to numbers.
      values: what is bound, as text, by the full name of the setting.
      files: the texts of the gin files that were read, by their paths; only of a check.
    """

    conditions: Conditions
    values: Mapping[str, str]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)


def begin(run_dir: RunDir, now: Effective, job: str) -> list[str]:
    """Reopens a finished run if its end has moved, before any job looks for it.

    Args:
      now: its effective bindings.
      job: the full name of the module of one of the run's jobs.

    Returns:
      Lines that name what changed since the configuration was saved, and the effect.
    """
    if not (run_dir.config.exists() or run_dir.done.exists()):
        return []
    goes_on = reopen(run_dir, now.conditions)
    finished = not goes_on and run_dir.done.exists()
    return [f'changed since: {text}{_effect(target, finished)}' for target, text in _changes(run_dir, now, job)]


def reopen(run_dir: RunDir, conditions: Conditions) -> bool:
    """Takes the marks of its end from a finished run if the condition that ended it was raised.
    Nothing else changes.

    DONE is kept as DONE-1, DONE-2, ...

    Args:
      conditions: the stop conditions now; those that are missing or None do not hold.
    """
    trained = read_json(run_dir.train_result, messages.Ended)
    done = read_json(run_dir.done, messages.Ended) or trained
    request = read_json(run_dir.stop_request, messages.StopRequest) or {}
    is_remote = run_dir.location != str(run_dir.root)  # whose objects another job would bring back
    if done is None or is_remote:
        return False
    before = (trained or {}).get('conditions', {})
    if not _has_moved(str(request.get('reason', done['reason'])), done, before, conditions):
        return False
    # DONE last: a process that is killed in between decides in the same way when it is started
    # again.
    run_dir.stop_request.unlink(missing_ok=True)
    run_dir.train_result.unlink(missing_ok=True)
    # Another job was faster, or training alone had ended.
    with contextlib.suppress(FileNotFoundError):
        run_dir.done.rename(Numbered(run_dir.root, f'{run_dir.done.name}-{{}}').next_path())
    logging.info('the run continues: it had ended with %s', done['reason'])
    return True


def _has_moved(reason: str, counts: Mapping[str, Any], before: Conditions, conditions: Conditions) -> bool:
    """Returns whether the condition that ended the run now lies ahead, and no other one is reached.

    Of a run that its program stopped, any of the conditions `before`.
    """
    name, _, rest = reason.partition(' ')
    old = before
    if name != messages.STOPPED:
        if name not in CONDITIONS:  # somebody asked for the end
            return False
        try:
            old = {name: float(rest.partition(' ')[0].rstrip(',:'))}
        except ValueError:
            return False
    if not any(_is_raised(each, value, conditions.get(each)) for each, value in old.items()):
        return False
    return not any(
        (end := conditions.get(condition)) is not None and (counts.get(count) or 0) >= end
        for condition, count in _COUNTS.items()
    )


def _is_raised(name: str, old: float | None, new: float | None) -> bool:
    return new is None or old is None or float(f'{new:g}' if name == 'target_return' else new) > old


def _changes(run_dir: RunDir, now: Effective, job: str) -> list[tuple[str, str]]:
    """Returns the settings that differ from the saved ones:
    the function's name, and the setting as text.
    """
    # A run of before they were saved.
    if (old := read_json(run_dir.config_values, dict[str, str])) is None:
        return []
    new = now.values
    return [
        (name.rpartition('.')[0].rpartition('/')[2], f'{name} {old.get(name, "unset")} -> {new.get(name, "unset")}')
        for name in [*new, *(old.keys() - new.keys())]
        # A job that takes the bindings of other jobs has saved them as its own too.
        if old.get(name) != new.get(name) and not (name not in new and name.startswith(_own_names(job)))
    ]


def _own_names(job: str) -> str:
    name = job.rpartition('.')[2]
    return f'{name}.{name}.'


def _effect(function: str, finished: bool) -> str:
    if finished:
        return ' (no effect: the run is finished)'
    if function in _BEGINNING:
        return ' (no effect: the run has begun already)'
    return ' (takes effect from now; refused if a checkpoint does not fit it)'
