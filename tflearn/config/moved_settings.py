"""Settings of version 0.1 that are now in parts of what had them: `Experience.order`, `train.num_train_steps`, ..."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tflearn.config.reader import Reference

_EXPERIENCE, _TRAIN, _COLLECT = 'tflearn.experience', 'tflearn.jobs.train', 'tflearn.jobs.collect_settings'
_SUMMARIES = 'tflearn.learner.summaries'


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TABLE = ('max_size', 'min_size', 'samples_per_insert', 'max_times_sampled')
_REPLAYS = {'uniform': 'Uniform', 'prioritized': 'Prioritized', 'queue': 'Queue'}
# By part of `Experience.replay`: the arguments that `Experience` had -> its own.
_REPLAY_ARGUMENTS = {
    'Uniform': _same(*_TABLE, 'sampling', 'max_mirror_gb'),
    'Prioritized': _same(*_TABLE, 'prioritization'),
    'Queue': _same('max_size', 'max_policy_lag', 'versions_ahead') | {'iteration': 'training', 'reuse': 'training'},
}
_SLICING = _same('sequence_length', 'stride', 'pad_episodes', 'cross_episodes', 'store_policy_state')
_BATCHES = {'per_replica_batch_size': 'BatchItems', 'per_replica_batch_steps': 'BatchSteps'}
_EPISODE_METRICS = {'metrics_buffer_size': 'buffer_size', 'metrics_gamma': 'gamma'}
_EPISODE_LIMIT = ('max_episodes_per_version', 'versions_ahead', 'collect_at_least_every_secs')
_INTERVALS = ('publish_interval_steps', 'export_interval_steps', 'replica_check_interval_steps', 'steps_per_call')
# By argument of the jobs train and synchronous: its group, and the arguments that the jobs had -> the group's own.
_GROUPS = {
    'stop_conditions': ('StopConditions', _same('num_train_steps', 'max_env_steps', 'max_secs')),
    'intervals': ('Intervals', _same(*_INTERVALS)),
    'device': ('Device', _same('strategy', 'precision', 'inter_op_threads')),
    'initial': ('Initial', {'seed': 'seed', 'initial_checkpoint': 'checkpoint', 'initial_prefixes': 'prefixes'}),
    'data': ('Data', {'data_timeout_secs': 'timeout_secs', 'data_addresses': 'addresses'}),
    'options': ('LearnerOptions', _same('checkpoint_interval_steps')),
}
# Arguments that hold one of several parts.
CHOICES = (f'{_EXPERIENCE}.Experience.batch', f'{_EXPERIENCE}.Experience.replay')
# What nothing replaced, and why it is not needed.
_REMOVED = {
    f'tflearn.learner.{name}': 'a batch source with `prioritization` and `update` (types.PrioritizedSource) does it'
    for name in (
        'learner.LearnerOptions.on_items',
        'train_loop.LoopOptions.item_figure',
        'train_loop.LoopOptions.normalize_weights',
    )
}
# These jobs, and what they call the learner's options.
_JOBS = {
    f'{_TRAIN}.train': 'options',
    'tflearn.jobs.synchronous.synchronous': 'learner_options',
}
# Functions whose arguments are in parts now.
OWNERS = (f'{_EXPERIENCE}.Experience', *_JOBS, 'tflearn.jobs.collect.collect', f'{_COLLECT}.CollectOptions')


@dataclasses.dataclass(frozen=True)
class Setting:
    """The full name of an argument, and the value that is bound to it."""

    name: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What replaces a binding.

    Attributes:
      settings: the new bindings; none if it has no effect any more.
      needed: bindings without which the first ones would have no effect, unless these arguments are bound already.
      why: why there is no new binding.
    """

    settings: Sequence[Setting] = ()
    needed: Sequence[Setting] = ()
    why: str = 'the run has no use for it'

    @property
    def text(self) -> str:
        """For messages: the first new name, or that there is none."""
        return f'{self.settings[0].name}, which replaced it' if self.settings else f'no such binding, since {self.why}'


def replacement(setting: Setting, run: Sequence[Setting]) -> Replacement | None:
    """Returns what replaces a setting; None if it stays.

    Args:
      setting: one of `run`.
      run: all settings of the run in their order.
    """
    if setting.name in _REMOVED:
        return Replacement(why=_REMOVED[setting.name])
    owner, _, name = setting.name.rpartition('.')
    if owner in _JOBS:
        return _of_job(owner, name, setting.value)
    if setting.name == 'tflearn.jobs.collect.collect.max_env_steps':
        options = Setting('tflearn.jobs.collect.collect.options', _call(f'{_COLLECT}.CollectOptions'))
        return Replacement([Setting(f'{_COLLECT}.CollectOptions.max_env_steps', setting.value)], [options])
    if owner == f'{_COLLECT}.CollectOptions' and name in _EPISODE_LIMIT:
        limit = Setting(f'{_COLLECT}.CollectOptions.episode_limit', _call(f'{_COLLECT}.EpisodeLimit'))
        return Replacement([Setting(f'{_COLLECT}.EpisodeLimit.{name}', setting.value)], [limit])
    if owner == f'{_COLLECT}.CollectOptions' and name in _EPISODE_METRICS:
        measured = Setting(f'{_COLLECT}.CollectOptions.episode_metrics', _call(f'{_COLLECT}.EpisodeMetricsOptions'))
        new = f'{_COLLECT}.EpisodeMetricsOptions.{_EPISODE_METRICS[name]}'
        return Replacement([Setting(new, setting.value)], [measured])
    if owner == f'{_SUMMARIES}.SummaryOptions' and name in ('policy_version', 'metrics', 'texts'):
        sources = Setting(f'{owner}.sources', _call(f'{_SUMMARIES}.SummarySources'))
        return Replacement([Setting(f'{_SUMMARIES}.SummarySources.{name}', setting.value)], [sources])
    return _of_experience(setting, run) if owner == f'{_EXPERIENCE}.Experience' else None


def _of_job(owner: str, name: str, value: Any) -> Replacement | None:
    """Returns what replaces an argument of the train job or of the synchronous one."""
    if name == 'summary_interval_steps':
        options = Setting(f'{owner}.{_JOBS[owner]}', _call(f'{_TRAIN}.LearnerOptions'))
        summaries = Setting(f'{_TRAIN}.LearnerOptions.summaries', _call(f'{_TRAIN}.SummaryOptions'))
        return Replacement([Setting(f'{_TRAIN}.SummaryOptions.interval_steps', value)], [options, summaries])
    for argument, (group, names) in _GROUPS.items():
        if name in names:
            argument = _JOBS[owner] if argument == 'options' else argument
            needed = Setting(f'{owner}.{argument}', _call(f'{_TRAIN}.{group}'))
            return Replacement([Setting(f'{_TRAIN}.{group}.{names[name]}', value)], [needed])
    return None


def _of_experience(setting: Setting, run: Sequence[Setting]) -> Replacement | None:
    """Returns what replaces an argument of `Experience`."""
    name = setting.name.rpartition('.')[2]
    if name == 'order':
        kind = _REPLAYS.get(setting.value, 'Uniform')
        return Replacement([_choice('replay', kind), *_carried_over(kind, run[: run.index(setting)])])
    if name in _SLICING:
        return Replacement([Setting(f'{_EXPERIENCE}.Slicing.{name}', setting.value)], [_choice('slicing', 'Slicing')])
    if part := _BATCHES.get(name):
        size = Setting(f'{_EXPERIENCE}.{part}.per_replica', setting.value)
        return Replacement() if setting.value is None else Replacement([size], [_choice('batch', part)])
    if not any(name in names for names in _REPLAY_ARGUMENTS.values()):
        return None
    bound = replay_part(run)
    kind = bound or 'Uniform'
    new = _REPLAY_ARGUMENTS[kind].get(name)
    if new is None or (setting.value is None and new == 'training'):
        return Replacement()
    needed = [] if bound else [_choice('replay', kind)]
    return Replacement([Setting(f'{_EXPERIENCE}.{kind}.{new}', setting.value)], needed)


def replay_part(run: Sequence[Setting]) -> str | None:
    """Returns the part that is bound to `Experience.replay`, or that `order` stood for; None if neither is bound."""
    for setting in reversed(run):
        if setting.name == f'{_EXPERIENCE}.Experience.order':
            return _REPLAYS.get(setting.value, 'Uniform')
        if setting.name == f'{_EXPERIENCE}.Experience.replay' and isinstance(setting.value, Reference):
            return setting.value.selector.rpartition('.')[2]
    return None


def _choice(argument: str, part: str) -> Setting:
    return Setting(f'{_EXPERIENCE}.Experience.{argument}', _call(f'{_EXPERIENCE}.{part}'))


def _call(function: str) -> Reference:
    return Reference('', function, evaluate=True)


def _carried_over(part: str, before: Sequence[Setting]) -> list[Setting]:
    """Returns the settings of another part, bound before, that held for the new one too as long as there was one."""
    old = replay_part(before)
    if old in (None, part):
        return []
    owners = [f'{_EXPERIENCE}.{owner}' for owner in ('Experience', *_REPLAY_ARGUMENTS)]
    names = {f'{owner}.{name}': name for owner in owners for name in _TABLE if name in _REPLAY_ARGUMENTS[part]}
    found = {names[setting.name]: setting.value for setting in before if setting.name in names}
    return [Setting(f'{_EXPERIENCE}.{part}.{name}', value) for name, value in found.items()]
