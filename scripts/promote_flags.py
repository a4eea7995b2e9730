"""tflearn-promote: its flags, and what it does with them."""

import pathlib
from typing import Any

from absl import flags

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir, local_path
from tflearn.product import states

from . import preflight


def run(switches: flags.FlagValues) -> int:
    """Runs the program; returns its exit status."""
    directory = RunDir(local_path(switches.root_dir, '--root_dir')).policy(switches.policy)
    if switches.rollback and switches.candidate:
        raise UserValueError(f'got --rollback and --candidate={switches.candidate}; need one of them')
    if switches.rollback:
        print(states.rollback(directory, switches.why or 'by hand').text())
        return 0
    if not switches.candidate:
        found = states.read(directory)
        print(found.text() if found else f'no version of {directory} has a state; the newest one answers')
        return 0
    return _promote(switches, directory)


def _promote(switches: flags.FlagValues, directory: pathlib.Path) -> int:
    if (switches.to == states.CANARY) != bool(switches.share):
        raise UserValueError(f'got --to={switches.to} with --share={switches.share}; need a share for a canary only')
    if switches.to != states.SHADOW and switches.ungated == bool(switches.data):
        raise UserValueError(
            f'got --data={",".join(switches.data)} with --ungated={switches.ungated}; need held-out episodes, such as '
            '--data=data/parts/held_out, or --ungated alone'
        )
    names = ('margin', 'level', 'min_effective_sample_size', 'gamma', 'epsilon')
    given: dict[str, Any] = {name: switches[name].value for name in names}
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.api import promotion  # It loads TensorFlow.

    text, done = promotion.promote(
        directory, switches.candidate, switches.to, switches.why, switches.incumbent, switches.data,
        switches.share or 0.0, **given,
    )  # fmt: skip
    print(text)
    return 0 if done else 1
