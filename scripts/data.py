"""Writes episodes to files, and describes, merges and filters them.

tflearn data record     a policy, or random actions, in the run's environment -> episodes in --output
tflearn data extract    complete episodes of a run's replay, of its newest checkpoint or its running server -> --output
tflearn data describe   columns, ranges, missing values, returns and lengths of the episodes in --data;
                        --picture=FILE.png plots them
tflearn data merge      episodes of all --data -> --output
tflearn data filter     those of all --data that pass the filters -> --output
tflearn data copy       merge and filter in one
tflearn data split      those of all --data into --output/train and --output/held_out, by --by and --share
tflearn data import     logs in CSV, Parquet, Arrow or JSON lines (--from, --columns) -> --output
tflearn data join       decisions of tflearn-serve and their --outcomes, as episodes -> --output
tflearn data convert    episodes of --data (tflearn, Minari, RLDS, RLlib's JSON) -> --output in --format=tflearn,
                        minari or rlds

tflearn train-offline trains on them.
"""

import functools
import sys

from tflearn.core.errors import UserValueError
from tflearn.core.verbs import Verb

from . import data_flags, job_flags, job_setup


def main(program: str) -> None:
    """Runs the program."""
    command = sys.argv.pop(1) if len(sys.argv) > 1 else '--help'
    if command in data_flags.JOBS:
        job_setup.main(command, __doc__, program=f'{program} {command}', module='record', **data_flags.JOBS[command])
    elif groups := data_flags.COMMANDS.get(command):
        verb = Verb(functools.partial(data_flags.run, command), groups)
        job_flags.tool(f'{program} {command}', verb, __doc__)
    elif command in ('--help', 'help', '-h'):
        print(f'{program}: {__doc__}\nEach has its own --help: {program} record --help')
    else:
        with job_flags.ending(program):
            names = ', '.join([*data_flags.JOBS, *data_flags.COMMANDS])
            raise UserValueError(f'got {command!r}; need one of {names}; see --help')
