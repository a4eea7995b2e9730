"""Promotes a version of a policy that is not worse than the incumbent, and takes it back.

tflearn-promote --root_dir=DIR --candidate=VERSION --data=HELD_OUT --margin=0.01   stable, if it passes the gate
tflearn-promote --root_dir=DIR --candidate=VERSION --to=canary --share=0.1 ...     answers a share of the requests
tflearn-promote --root_dir=DIR --candidate=VERSION --to=shadow                     its answers are only logged
tflearn-promote --root_dir=DIR --rollback                                          back to the version before
tflearn-promote --root_dir=DIR                                                     prints the states, and the changes

A VERSION is a train step of the policy, or the path of a version of another run, which is copied. tflearn-serve
--root_dir=DIR follows within a second. The exit status is 1 if the candidate does not pass.
"""

import pathlib

from absl import flags

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir, local_path
from tflearn.policies import states

from . import job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-promote', __doc__, _run, ('promote',), required=('root_dir',))


def _run(switches: flags.FlagValues) -> int:
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
    given = job_flags.values_of(*names, values=switches)
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.extensions.product import promotion  # It loads TensorFlow.

    text, done = promotion.promote(
        directory, switches.candidate, switches.to, switches.why, switches.incumbent, switches.data,
        switches.share or 0.0, **given,
    )  # fmt: skip
    print(text)
    return 0 if done else 1


if __name__ == '__main__':
    main()
