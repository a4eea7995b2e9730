"""The command `tflearn`: a verb for each thing that is done beside the jobs of a run."""

import importlib
import sys

from tflearn.core import extensions

from . import commands, job_flags, tools


def main() -> None:
    """Runs the verb, which is the first argument."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else '--help'
    if name in ('--help', '-h'):
        print(commands.help_text())
        return
    with job_flags.ending('tflearn'):
        commands.check(name)
        if verb := tools.VERBS.get(name) or extensions.verb(name):
            job_flags.tool(f'tflearn {name}', verb)
            return
    importlib.import_module(f'.{name.replace("-", "_")}', __package__).main(f'tflearn {name}')


if __name__ == '__main__':
    main()
