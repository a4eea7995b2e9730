"""Checks an environment before anything is trained in it: tflearn-check-env ENVIRONMENT.

ENVIRONMENT is a registered name (CartPole-v1, module:Name-v0), or module:Class or module:function, which makes one
gymnasium environment. It takes random actions, and prints a line for each check: ok, LOOK (it can be trained in, but
probably not as it was meant) or error. The exit status is 1 after an error.
"""

from absl import flags

from . import job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-check-env', __doc__, _run, ('check_env',), arguments='ENVIRONMENT')


def _run(switches: flags.FlagValues, name: str) -> int:
    preflight.import_from_here()
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.environments import check

    found = check.check_environment(check.imported(name), switches.steps, switches.seed, switches.secs)
    print('\n'.join(map(str, found)))
    states = [finding.state for finding in found]
    return int('error' in states or (switches.strict and 'LOOK' in states))


if __name__ == '__main__':
    main()
