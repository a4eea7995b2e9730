"""Trains several policies of one game: tflearn-policies --root_dir=runs/talk speaker=talk.gin listener=talk.gin.

Each argument is a policy of `pettingzoo_env.make.policies` and the gin file of its run, which is in ROOT_DIR/speaker.
In it the other policies play as their runs export them. The same command continues what was stopped; tflearn-list shows
all of them.
"""

import pathlib
import sys

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-policies', __doc__, _define, _run, required=('root_dir',), arguments='POLICY=GIN_FILE ...')


def _define(switches: flags.FlagValues) -> None:
    flags.DEFINE_string('root_dir', None, 'The folder of the runs. Required.', flag_values=switches)
    flags.DEFINE_multi_string('gin_bindings', [], 'Gin statements for each of them.', flag_values=switches)
    modes = ['processes', 'synchronous']
    help = 'processes: as tflearn-launch; synchronous: each run in one process.'
    flags.DEFINE_enum('mode', modes[0], modes, help, flag_values=switches)
    partners = ['Newest', 'League']
    help = 'How the others play: with the newest weights, or as a league of versions (classes of policies.league).'
    flags.DEFINE_enum('partner', partners[0], partners, help, flag_values=switches)


def _run(switches: flags.FlagValues, *given: str) -> int:
    from tflearn.experiments import overview, policies

    gin_files = policies.read(given)
    root = pathlib.Path(switches.root_dir)
    codes = policies.Policies(root, gin_files, switches.gin_bindings, switches.mode, switches.partner).run(sys.stdout)
    if failed := [code for code in codes.values() if code]:
        return failed[0] & 0xFF
    print(f'\n{overview.table(str(root))}')
    return 0


if __name__ == '__main__':
    main()
