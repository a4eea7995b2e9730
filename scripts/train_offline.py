"""Trains the agent of a run on episodes in files (tflearn data), without a replay server and without an environment.

It uses the same gin file as the other jobs: the bindings of train, with experience.Uniform. Its own settings are
train_offline.Dataset, Reading, Validation and DataStopConditions. It writes the same files to --root_dir as train, so
evaluate and export work with it.
"""

from collections.abc import Mapping, Sequence

from absl import flags

from tflearn.config import files, reader
from tflearn.files.run_dir import local_path

from . import job_setup, train

_ENVIRONMENT = 'make_environment'


def bindings() -> Sequence[str]:
    """Returns the gin statements that --data and --strategy stand for."""
    paths = [str(local_path(path, '--data', may_be_pattern=True)) for path in flags.FLAGS.data]
    given = reader.read(files.resolve(flags.FLAGS.gin_file), flags.FLAGS.gin_bindings).bindings
    named = any(binding.written == _ENVIRONMENT and not binding.parameter for binding in given)
    return [
        *([] if named else [f'{_ENVIRONMENT} = None']),  # gin/jobs.gin has it for the other jobs
        *train.bindings(),
        'from tflearn.jobs import train_offline',
        'train_offline.train_offline.dataset = @train_offline.Dataset()',
        'train_offline.train_offline.data_stop_conditions = @train_offline.DataStopConditions()',
        'train_offline.train_offline.reading = @train_offline.Reading()',
        'train_offline.Reading.validation = @train_offline.Validation()',
        *([f'train_offline.Dataset.paths = {paths!r}'] if paths else []),
    ]


def shared_arguments() -> Mapping[str, str]:
    """Returns which bindings of the train job hold for this job."""
    same = ('make_agent', 'experience', 'stop_conditions', 'intervals', 'device', 'initial', 'exports')
    return {**{name: f'train.{name}' for name in same}, 'learner_options': 'train.options'}


def main(program: str) -> None:
    """Runs the program; see `job_setup.main`."""
    groups = (*train.FLAGS, 'train_offline')
    job_setup.main('train_offline', __doc__, groups=groups, bindings=bindings, shared=shared_arguments, program=program)
