"""Settings of version 0.1 that are now in parts of what had them: `Experience.order`, `train.num_train_steps`, ..."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tflearn.config.reader import Reference

_EXPERIENCE = 'tflearn.experience'
_TABLE = ('max_size', 'min_size', 'samples_per_insert', 'max_times_sampled')
_REPLAYS = {'uniform': 'Uniform', 'prioritized': 'Prioritized', 'queue': 'Queue'}
# By part of `Experience.replay`: the arguments that `Experience` had -> its own.
_REPLAY_ARGUMENTS = {
    'Uniform': {name: name for name in (*_TABLE, 'sampling', 'max_mirror_gb')},
    'Prioritized': {name: name for name in (*_TABLE, 'prioritization')},
    'Queue': {
        **{name: name for name in ('max_size', 'max_policy_lag', 'versions_ahead')},
        'iteration': 'training',
        'reuse': 'training',
    },
}
_OF_A_REPLAY = {name for names in _REPLAY_ARGUMENTS.values() for name in names}
# The other arguments that `Experience` had -> the argument with the part, the part, the part's argument.
_EXPERIENCE_ARGUMENTS = {
    **{
        name: ('slicing', 'Slicing', name)
        for name in ('sequence_length', 'stride', 'pad_episodes', 'cross_episodes', 'store_policy_state')
    },
    'per_replica_batch_size': ('batch', 'BatchItems', 'per_replica'),
    'per_replica_batch_steps': ('batch', 'BatchSteps', 'per_replica'),
}
# What nothing replaced, and why it is not needed.
_REMOVED = {
    f'tflearn.learner.{name}': 'a batch source with `prioritization` and `update` (types.PrioritizedSource) does it'
    for name in (
        'learner.LearnerOptions.on_items',
        'train_loop.LoopOptions.item_figure',
        'train_loop.LoopOptions.normalize_weights',
    )
}


# Functions whose arguments are in parts now.
OWNERS = (f'{_EXPERIENCE}.Experience',)


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
    if owner != f'{_EXPERIENCE}.Experience':
        return None
    if name == 'order':
        part = _REPLAYS.get(setting.value, 'Uniform')
        return Replacement([_choice('replay', part), *_carried_over(part, run[: run.index(setting)])])
    if name in _EXPERIENCE_ARGUMENTS:
        argument, part, new = _EXPERIENCE_ARGUMENTS[name]
        if setting.value is None:
            return Replacement()
        return Replacement([Setting(f'{_EXPERIENCE}.{part}.{new}', setting.value)], [_choice(argument, part)])
    if name not in _OF_A_REPLAY:
        return None
    part = replay_part(run)
    if name not in _REPLAY_ARGUMENTS[part or 'Uniform'] or (setting.value is None and name in ('iteration', 'reuse')):
        return Replacement()
    new = _REPLAY_ARGUMENTS[part or 'Uniform'][name]
    needed = [] if part else [_choice('replay', 'Uniform')]
    return Replacement([Setting(f'{_EXPERIENCE}.{part or "Uniform"}.{new}', setting.value)], needed)


def replay_part(run: Sequence[Setting]) -> str | None:
    """Returns the part that is bound to `Experience.replay`, or that `order` stood for; None if neither is bound."""
    for setting in reversed(run):
        if setting.name == f'{_EXPERIENCE}.Experience.order':
            return _REPLAYS.get(setting.value, 'Uniform')
        if setting.name == f'{_EXPERIENCE}.Experience.replay' and isinstance(setting.value, Reference):
            return setting.value.selector.rpartition('.')[2]
    return None


def _choice(argument: str, part: str) -> Setting:
    return Setting(f'{_EXPERIENCE}.Experience.{argument}', Reference('', f'{_EXPERIENCE}.{part}', evaluate=True))


def _carried_over(part: str, before: Sequence[Setting]) -> list[Setting]:
    """Returns the settings of another part, bound before, that held for the new one too as long as there was one."""
    old = replay_part(before)
    if old in (None, part):
        return []
    owners = [f'{_EXPERIENCE}.{owner}' for owner in ('Experience', *_REPLAY_ARGUMENTS)]
    names = {f'{owner}.{name}': name for owner in owners for name in _TABLE if name in _REPLAY_ARGUMENTS[part]}
    found = {names[setting.name]: setting.value for setting in before if setting.name in names}
    return [Setting(f'{_EXPERIENCE}.{part}.{name}', value) for name, value in found.items()]
