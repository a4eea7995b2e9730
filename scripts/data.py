"""Writes episodes to files, and describes, merges and filters them.

tflearn-data record     a policy, or random actions, in the run's environment -> episodes in --output
tflearn-data extract    complete episodes of a run's replay, of its newest checkpoint or its running server -> --output
tflearn-data describe   columns, ranges, missing values, returns and lengths of the episodes in --data;
                        --picture=FILE.png plots them
tflearn-data merge      episodes of all --data -> --output
tflearn-data filter     those of all --data that pass the filters -> --output
tflearn-data copy       merge and filter in one
tflearn-data split      those of all --data into --output/train and --output/held_out, by --by and --share
tflearn-data import     logs in CSV, Parquet or JSON lines (--from, --columns) -> --output
tflearn-data join       decisions of tflearn-serve and their --outcomes, as episodes -> --output
tflearn-data convert    episodes of --data (tflearn, Minari or RLDS) -> --output in --format=tflearn, minari or rlds

tflearn-train-offline trains on them.
"""

import functools
import sys

from tflearn.core.errors import UserValueError

from . import data_flags, job_flags, job_setup


def main() -> None:
    """Runs the program."""
    command = sys.argv[1] if len(sys.argv) > 1 else '--help'
    if command in data_flags.JOBS:
        del sys.argv[1]
        job_setup.main(command, __doc__, program=f'tflearn-data {command}', module='record', **data_flags.JOBS[command])
    elif groups := data_flags.COMMANDS.get(command):
        del sys.argv[1]
        run = functools.partial(data_flags.run, command)
        job_flags.tool('tflearn-data', __doc__, run, groups, command=command)
    elif command in ('--help', 'help', '-h'):
        print(f'tflearn-data: {__doc__}\nEach has its own --help: tflearn-data record --help')
    else:
        with job_flags.ending('tflearn-data'):
            names = (*data_flags.JOBS, *data_flags.COMMANDS)
            raise UserValueError(f'got {command!r}; need one of {", ".join(names)}; see --help')


if __name__ == '__main__':
    main()
