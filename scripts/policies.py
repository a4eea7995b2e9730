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
    arguments = 'POLICY=GIN_FILE ...'
    job_flags.tool('tflearn-policies', __doc__, _run, ('policies',), required=('root_dir',), arguments=arguments)


def _run(switches: flags.FlagValues, *given: str) -> int:
    from tflearn.extensions.experiments import overview, policies

    gin_files = policies.read(given)
    root = pathlib.Path(switches.root_dir)
    codes = policies.run(root, gin_files, sys.stdout, switches.gin_bindings, switches.mode, switches.partner)
    if failed := [code for code in codes.values() if code]:
        return failed[0] & 0xFF
    print(f'\n{overview.table(str(root))}')
    return 0


if __name__ == '__main__':
    main()
