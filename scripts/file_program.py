"""What programs share that take paths as arguments and have only switches: flags, --help, errors in one line."""

import sys
from collections.abc import Callable, Mapping

from absl import flags

from tflearn.errors import UserError, UserValueError


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
    try:
        try:
            arguments = switches(sys.argv)[1:]
        except flags.Error as error:
            raise UserValueError(f'got a wrong flag: {" ".join(str(error).split())}; see --help') from error
        if switches.help:
            shown = '\n'.join(f'  --{flag}\n      {switches[flag].help}' for flag in own)
            print(f'{name}: {text}\nFlags:\n\n{shown}')
            return
        if not arguments:
            raise UserValueError(f'got no argument; need {needs}; see --help')
        status = work(arguments, {flag: bool(switches[flag].value) for flag in own})
    except UserError as error:
        print(f'{name}: error: {error}', file=sys.stderr)
        status = 2
    sys.exit(status)
