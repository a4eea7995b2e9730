"""What programs share that take paths as arguments and have only switches: flags, --help, errors in one line."""

import sys
from collections.abc import Callable, Mapping

from absl import flags

from tflearn.errors import UserValueError

from . import job_flags


def run(
    name: str,
    text: str,
    switches: flags.FlagValues,
    needs: str,
    work: Callable[[list[str], Mapping[str, bool]], int],
) -> None:
    """Calls `work` with the arguments and switches, and ends with its exit status, or with 2 for a user's error.

    Args:
      name: the program's name.
      text: what --help prints first.
      switches: the flags, all of them switches.
      needs: what the arguments are, for the error if there are none.
    """
    own = list(switches)
    flags.DEFINE_bool('help', False, 'Shows this.', flag_values=switches)
    with job_flags.ending(name):
        arguments = job_flags.parse(sys.argv, switches)
        if switches.help:
            shown = '\n'.join(f'  --{flag}\n      {switches[flag].help}' for flag in own)
            print(f'{name}: {text}\nFlags:\n\n{shown}')
            return
        if not arguments:
            raise UserValueError(f'got no argument; need {needs}; see --help')
        sys.exit(work(arguments, {flag: bool(switches[flag].value) for flag in own}))
