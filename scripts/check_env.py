"""Checks an environment before anything is trained in it: tflearn-check-env ENVIRONMENT.

ENVIRONMENT is a registered name (CartPole-v1, module:Name-v0), or module:Class or module:function, which makes one
gymnasium environment. It takes random actions, and prints a line for each check: ok, LOOK (it can be trained in, but
probably not as it was meant) or error. The exit status is 1 after an error.
"""

from absl import flags

from . import job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-check-env', __doc__, _define, _run, arguments='ENVIRONMENT')


def _define(switches: flags.FlagValues) -> None:
    flags.DEFINE_integer('steps', 1_000, 'Steps of each of two copies.', 1, flag_values=switches)
    flags.DEFINE_integer('seed', 0, 'Seed of the environments and of the actions.', 0, flag_values=switches)
    help = 'How long each kind of vectorization is timed [s]; 0: none is.'
    flags.DEFINE_float('secs', 1.0, help, 0.0, 3_600.0, flag_values=switches)
    flags.DEFINE_bool('strict', False, 'Exit status 1 also if a check says LOOK.', flag_values=switches)


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
