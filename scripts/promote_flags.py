"""tflearn-promote: its flags, and what it does with them."""

import pathlib
from typing import Any

from absl import flags

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir, local_path
from tflearn.product import states

from . import job_flags, preflight


def define(switches: flags.FlagValues) -> None:
    """Defines the flags."""
    given: dict[str, Any] = {'flag_values': switches}
    flags.DEFINE_string('root_dir', '', "The run's directory that tflearn-serve serves. Required.", **given)
    flags.DEFINE_string('policy', 'greedy_policy', 'Name of the policy.', **given)
    flags.DEFINE_string('candidate', '', 'The version: a train step, or the path of a version, with a /.', **given)
    help = 'The version that it is compared with; default: the stable one, else what has logged the episodes.'
    flags.DEFINE_string('incumbent', '', help, **given)
    flags.DEFINE_multi_string('data', [], 'Directory of held-out episodes; may be repeated.', **given)
    flags.DEFINE_bool('ungated', False, 'Makes it stable or canary without a gate.', **given)
    help = "How much less its value may be than the incumbent's, in the unit of the reward."
    job_flags.define_number('margin', 0.0, help, 0.0, **given)
    help = 'The confidence level of the lower bound and of the intervals.'
    job_flags.define_number('level', 0.95, help, 0.5, 0.9999, **given)
    help = 'Episodes that the data have to be worth for each policy.'
    job_flags.define_number('min_effective_sample_size', 100.0, help, 1.0, **given)
    help = 'The discount of the value; 1 is the sum of the rewards.'
    job_flags.define_number('gamma', 1.0, help, 0.0, 1.0, **given)
    help = 'The share of random actions of both policies: that of tflearn-serve.'
    job_flags.define_number('epsilon', 0.0, help, 0.0, 1.0, **given)
    names = [states.STABLE, states.CANARY, states.SHADOW]
    flags.DEFINE_enum('to', names[0], names, "The candidate's new state.", **given)
    job_flags.define_number('share', None, 'The share of the requests that a canary answers.', 0.0, 1.0, **given)
    flags.DEFINE_string('why', '', 'The reason, for the history.', **given)
    help = 'Takes the canary back; without one, the version that was stable before is so again.'
    flags.DEFINE_bool('rollback', False, help, **given)


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
