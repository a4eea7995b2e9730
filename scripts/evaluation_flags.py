"""tflearn-evaluate --data and --policy: their programs."""

import pathlib
import threading
from collections.abc import Mapping, Sequence

from absl import flags

from tflearn.core import extensions, preflight, waiting
from tflearn.core.errors import UserValueError
from tflearn.core.verbs import values_of
from tflearn.files.run_dir import RunDir, write_json

from . import job_flags, job_setup


def main_of_data(description: str | None) -> None:
    """Runs the program, see `job_setup.plain_main`; `description` begins its --help."""
    groups = ('episodes', 'evaluate_data')
    job_setup.plain_main('tflearn-evaluate', description, _run_data, '--data=data/expert', _check_data, groups)


def _check_data() -> None:
    if not all(flags.FLAGS.data):
        raise UserValueError('got an empty --data; need a directory of episodes, such as --data=data/expert')
    job_flags.make_local('output')


def _run_data(stop: threading.Event) -> None:
    with waiting.may_exit(stop, lambda: None):  # nothing is written before the end
        preflight.import_quietly('tensorflow', 'gym')
        found, facts = extensions.load('data_evaluation').evaluate_on_data(
            RunDir(flags.FLAGS.root_dir),
            flags.FLAGS.data,
            values_of(flags.FLAGS, 'min_return', 'max_return', 'max_episodes', 'max_damaged'),
            **values_of(flags.FLAGS, 'policy', 'train_step', 'epsilon', 'temperature', 'gamma'),
            **values_of(flags.FLAGS, 'horizon', 'num_features', 'greatest_weight'),
            **values_of(flags.FLAGS, 'largest_ratio', 'estimate_behaviour', 'seed', 'baseline_action'),
            features=flags.FLAGS.feature_importance,
            low=flags.FLAGS.reward_low,
            high=flags.FLAGS.reward_high,
            whole=flags.FLAGS.whole_sessions,
        )
        print(found.text(), flush=True)
        if flags.FLAGS.output:
            write_json(pathlib.Path(flags.FLAGS.output), facts)


def main_of_policy(description: str | None) -> None:
    """Runs the program, see `job_setup.main`; `description` begins its --help."""
    groups = ('policy', 'evaluate_policy')
    job_setup.main(
        'evaluate_policy', description, groups=groups, bindings=_bindings, shared=_shared_arguments,
        program='tflearn-evaluate', module='policy_evaluation',
    )  # fmt: skip


def _bindings() -> Sequence[str]:
    if not flags.FLAGS.policy:
        raise UserValueError('got an empty --policy; need one, such as --policy=best')
    names = ('policy', 'train_step', 'sampled', 'num_environments', 'num_processes', 'seed', 'output')
    return job_flags.statements('policy_evaluation.evaluate_policy', *names, num_episodes='episodes')


def _shared_arguments() -> Mapping[str, str]:
    """Returns which bindings of the evaluate job hold for this one."""
    names = ('make_environment', 'options', 'num_episodes', 'num_environments')
    return {name: f'evaluate.{name}' for name in names}
