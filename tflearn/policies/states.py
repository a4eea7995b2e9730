"""Which versions of a policy answer requests: one file beside the versions, `<policy>/states.json`.

    stable     answers the requests
    canary     answers a share of them, always those of the same keys
    shadow     computes answers that are logged, not given

Every change is one atomic replacement of the file; its history says who changed what, when and why.
`tflearn promote` and `tflearn-serve` write it, and the server follows it. Nothing here needs
TensorFlow.
"""

import dataclasses
import getpass
import hashlib
import os
import pathlib
import socket
import time
from typing import Annotated, Literal, NotRequired, TypedDict

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeInt, Range, checked_dataclass
from tflearn.files import messages
from tflearn.files.lock import locked
from tflearn.files.run_dir import read_json, write_json
from tflearn.policies import versions

State = Literal['stable', 'canary', 'shadow']
STABLE, CANARY, SHADOW = 'stable', 'canary', 'shadow'
ROLLBACK = 'rollback'
FILE = versions.STATES
_LOCK = '.states.lock'
_MAX_EARLIER, _MAX_HISTORY = 5, 1_000


class Change(TypedDict):
    """An entry of the history; `at` is in seconds since 1970."""

    change: str
    version: int
    at: messages.Moment
    who: str
    why: str
    share: NotRequired[float]


@checked_dataclass(frozen=True)
class States:
    """The versions of a policy that have a state.

    Attributes:
      stable: the version that answers.
      canary: the version that answers a share of the requests; None if there is none.
      share: that share.
      shadow: the version whose answers are logged only; None if there is none.
      earlier: versions that were stable, the last one first: rollbacks return to them.
      history: the changes, the last one last.
      best: the last version that was stable and proved to be better than the one before it here, or
        was not to prove anything: a candidate is compared with it too, so that what each may be
        worse by does not add up.
    """

    stable: NonNegativeInt
    canary: NonNegativeInt | None = None
    share: Annotated[float, Range(least=0, most=1)] = 0.0
    shadow: NonNegativeInt | None = None
    earlier: tuple[NonNegativeInt, ...] = ()
    history: tuple[Change, ...] = ()
    best: NonNegativeInt | None = None

    @property
    def labels(self) -> dict[str, int]:
        """The versions by their labels, as TensorFlow Serving has them."""
        found = {STABLE: self.stable, CANARY: self.canary, SHADOW: self.shadow}
        return {label: version for label, version in found.items() if version is not None}

    @property
    def versions(self) -> tuple[int, ...]:
        """What a server has loaded: what has a label, and what a rollback returns to."""
        return tuple(dict.fromkeys((*self.labels.values(), *self.earlier[:1])))

    @property
    def on_trial(self) -> int | None:
        """The version that may still be taken back:
        the canary, or a stable one that was promoted last.
        """
        if self.canary is not None:
            return self.canary
        changes = [entry.get('change') for entry in self.history]
        last = next((change for change in reversed(changes) if change in (STABLE, ROLLBACK)), None)
        return self.stable if last == STABLE and self.earlier else None

    def arm(self, key: str) -> str:
        """Returns which version answers the requests of a key:
        'stable' or 'canary', always the same one.
        """
        if self.canary is None:
            return STABLE
        # No checksum: those of numbered keys are spread more evenly, or less, than draws are, and
        # trials rest on the share.
        digest = hashlib.blake2b(f'{self.canary}:{key}'.encode(), digest_size=8).digest()
        return CANARY if int.from_bytes(digest, 'big') < self.share * 2**64 else STABLE

    def text(self) -> str:
        """Returns the states and the last changes, in lines."""
        names = {**self.labels, 'earlier': ', '.join(map(str, self.earlier)) or 'none'}
        lines = [f'{name:8} {version}{f" ({self.share:.0%})" * (name == CANARY)}' for name, version in names.items()]
        for entry in self.history[-10:]:
            at = time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(float(entry['at'])))
            lines.append(f'{at} UTC  {entry["who"]}: {entry["change"]} {entry["version"]}: {entry["why"]}')
        return '\n'.join(lines)


def read(directory: pathlib.Path) -> States | None:
    """Returns the states of a policy; None if it has none.

    Raises:
      ValueError: if the file is damaged.
    """
    found = read_json(directory / FILE, States)
    if found is None:
        return None
    known = {field.name: found[field.name] for field in dataclasses.fields(States) if field.name in found}
    return States(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


def promote(
    directory: pathlib.Path,
    version: int,
    state: State,
    why: str,
    share: float = 0.0,
    who: str = '',
    is_best: bool = True,
) -> States:
    """Sets a version's state; returns the states.

    Args:
      directory: the policy's directory, of the versions.
      version: the version, which exists.
      state: its new state. A new stable version ends the canary and the shadow if they are this
        version.
      why: the reason, for the history.
      share: the share of the requests that a canary answers.
      who: who changes it; '' is this user.
      is_best: whether candidates are compared with it from now on, once it is stable, see
        `States.best`.

    Raises:
      ValueError: if there is no such version, or a canary or shadow but no stable version, or the
        share is not one.
    """
    if not versions.keep(directory / str(version), versions.PROMOTED) or not versions.is_complete(
        directory / str(version)
    ):
        raise UserValueError(f'got the version {version}, which is not in {directory}; need one of it')
    with locked(directory / _LOCK):
        states = read(directory)
        if states is None and state != STABLE:
            raise UserValueError(f'got {version} as {state} of a policy without a stable version; need that first')
        if states is None:
            states = States(version, best=version)
        elif state == STABLE:
            earlier = tuple(each for each in (states.stable, *states.earlier) if each != version)[:_MAX_EARLIER]
            best = version if is_best else states.stable if states.best is None else states.best
            states = dataclasses.replace(states, stable=version, earlier=earlier, best=best)
            states = _without(states, version)
        elif version == states.stable:
            raise UserValueError(f'got the stable version {version} as {state}; need another one')
        elif state == CANARY:
            states = dataclasses.replace(_without(states, version), canary=version, share=share)
        else:
            states = dataclasses.replace(_without(states, version), shadow=version)
        return _write(directory, states, state, version, why, who)


def rollback(directory: pathlib.Path, why: str, who: str = '', only: int | None = None) -> States:
    """Takes the canary back; without one, makes the version stable again that was so before.
    Returns the states.

    Args:
      directory: the policy's directory, of the versions.
      why: the reason, for the history.
      who: who changes it; '' is this user.
      only: changes nothing unless this version is the one that would be taken back; None takes any.

    Raises:
      ValueError: if the policy has no states, or nothing to return to.
    """
    if not (directory / FILE).exists():
        raise UserValueError(f'got no {FILE} in {directory}; need a policy with a stable version')
    with locked(directory / _LOCK):
        states = read(directory)
        assert states is not None  # nobody removes it
        if only not in (None, states.stable if states.canary is None else states.canary):
            return states
        if states.canary is not None:
            return _write(directory, _without(states, states.canary), ROLLBACK, states.canary, why, who)
        there = [each for each in states.earlier if versions.is_complete(directory / str(each))]
        if not there:
            raise UserValueError(f'got no earlier stable version in {directory}; need one to return to')
        before, best = states.stable, there[0] if states.best == states.stable else states.best
        states = dataclasses.replace(states, stable=there[0], earlier=tuple(there[1:]), best=best)
        return _write(directory, _without(states, states.stable), ROLLBACK, before, why, who)


def _without(states: States, version: int) -> States:
    """Returns the states in which a version is neither the canary nor the shadow."""
    if states.canary == version:
        states = dataclasses.replace(states, canary=None, share=0.0)
    return dataclasses.replace(states, shadow=None) if states.shadow == version else states


def _write(directory: pathlib.Path, states: States, change: str, version: int, why: str, who: str) -> States:
    who = who or f'{_user()}@{socket.gethostname()}'
    entry: Change = {'change': change, 'version': version, 'at': time.time(), 'who': who, 'why': why}
    if change == CANARY:
        entry['share'] = states.share
    states = dataclasses.replace(states, history=(*states.history, entry)[-_MAX_HISTORY:])
    write_json(directory / FILE, dataclasses.asdict(states))
    promoted = {*states.labels.values(), *states.earlier, states.best}
    # By number: a pattern would follow the links `latest` and `best`, and take the mark from the
    # version behind them.
    for marked in versions.versions(directory, needs=(versions.PROMOTED,)):
        if marked not in promoted:
            versions.unkeep(directory / str(marked), versions.PROMOTED)
    return states


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name: a container's user
        return str(os.getuid())
