"""Promotes a version of a policy that is not worse than the incumbent, and takes it back.

tflearn-promote --root_dir=DIR --candidate=VERSION --data=HELD_OUT --margin=0.01   stable, if it passes the gate
tflearn-promote --root_dir=DIR --candidate=VERSION --to=canary --share=0.1 ...     answers a share of the requests
tflearn-promote --root_dir=DIR --candidate=VERSION --to=shadow                     its answers are only logged
tflearn-promote --root_dir=DIR --rollback                                          back to the version before
tflearn-promote --root_dir=DIR                                                     prints the states, and the changes

A VERSION is a train step of the policy, or the path of a version of another run, which is copied. tflearn-serve
--root_dir=DIR follows within a second. The exit status is 1 if the candidate does not pass.
"""

from . import job_flags, promote_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-promote', __doc__, promote_flags.run, ('promote',), required=('root_dir',))


if __name__ == '__main__':
    main()
