"""tflearn-evaluate --data and --policy: their flags, and what they print."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tflearn.core import waiting
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir, local_path, write_json

from . import data_flags, job_setup, preflight


def main_of_data(description: str | None) -> None:
    """Runs the program, see `job_setup.plain_main`; `description` begins its --help."""
    job_setup.plain_main('evaluate', description, _run_data, _define_data, '--data=data/expert', _check_data)


def _define_data() -> None:
    data_flags.define_episodes()
    flags.DEFINE_string('policy', 'greedy_policy', "Name of the run's exported policy that is evaluated.")
    flags.DEFINE_integer(
        'train_step', None, "Train step of the version; default: the run's result, else the newest.", 0
    )
    flags.DEFINE_float('epsilon', 0.0, "Share of random actions among the policy's own.", 0.0, 1.0)
    flags.DEFINE_float('gamma', 1.0, "Discount of the value; 1 estimates an episode's return.", 0.0, 1.0)
    flags.DEFINE_integer(
        'horizon', None, 'Number of steps of an episode that are used; default: the longest episode.', 1
    )
    flags.DEFINE_integer('num_features', 256, 'Features of fitted values and of an estimated behaviour policy.', 1)
    flags.DEFINE_integer('num_bootstrap', 1000, 'Bootstrap samples of the intervals.', 1)
    flags.DEFINE_integer('num_refits', 20, 'Bootstrap samples for which fitted Q evaluation is refitted.', 2)
    flags.DEFINE_bool(
        'estimate_behaviour', False, 'Estimates the behaviour policy even if its log-probabilities were recorded.'
    )
    flags.DEFINE_integer('seed', 0, 'Seed of the bootstrap samples and of the features.')
    flags.DEFINE_string('output', None, 'A JSON file for the estimates.')


def _check_data() -> None:
    if not all(flags.FLAGS.data):
        raise UserValueError('got an empty --data; need a directory of episodes, such as --data=data/expert')
    for name in ('epsilon', 'gamma'):
        if math.isnan(flags.FLAGS[name].value or 0.0):
            raise UserValueError(f'got --{name}={flags.FLAGS[name].value}; need a number from 0 to 1')
    if flags.FLAGS.output:
        local_path(flags.FLAGS.output, '--output')


def _values(*names: str) -> dict[str, Any]:
    return {name: flags.FLAGS[name].value for name in names}


def _run_data(stop: threading.Event) -> None:
    with waiting.may_exit(stop, lambda: None):  # nothing is written before the end
        preflight.import_quietly('tensorflow', 'gym')
        from tflearn.api import data_evaluation

        found, facts = data_evaluation.evaluate_on_data(
            RunDir(flags.FLAGS.root_dir),
            flags.FLAGS.data,
            _values('min_return', 'max_return', 'max_episodes', 'max_damaged'),
            **_values('policy', 'train_step', 'epsilon', 'gamma', 'horizon', 'num_features', 'num_bootstrap'),
            **_values('num_refits', 'estimate_behaviour', 'seed'),
        )
        print(found.text(), flush=True)
        if flags.FLAGS.output:
            write_json(local_path(flags.FLAGS.output, '--output'), facts)


_OF_POLICY = {
    'policy': 'policy',
    'train_step': 'train_step',
    'sampled': 'sampled',
    'num_episodes': 'episodes',
    'num_environments': 'num_environments',
    'num_processes': 'num_processes',
    'seed': 'seed',
    'output': 'output',
}


def main_of_policy(description: str | None) -> None:
    """Runs the program, see `job_setup.main`; `description` begins its --help."""
    job_setup.main(
        'evaluate_policy', description, define_flags=_define_policy, bindings=_bindings, shared=_shared_arguments,
        program='tflearn-evaluate', module='policy_evaluation',
    )  # fmt: skip


def _define_policy() -> None:
    data_flags.define_policy()
    flags.DEFINE_bool('sampled', False, 'Sample actions from the policy; otherwise use the mode.')
    flags.DEFINE_integer('episodes', 20, 'Episodes of all processes together.', lower_bound=1)
    flags.DEFINE_integer('num_environments', 10, 'Environments that each process steps together.', lower_bound=1)
    flags.DEFINE_integer('num_processes', 1, 'Number of processes.', lower_bound=1)
    flags.DEFINE_integer('seed', 0, 'Seed of the environments.')
    flags.DEFINE_string('output', None, 'A new JSON file; default: the next one in policy_evaluations/ of --root_dir.')


def _bindings() -> Sequence[str]:
    if not flags.FLAGS.policy:
        raise UserValueError('got an empty --policy; need one, such as --policy=best')
    # What is not given is left to the gin file.
    values = {name: flags.FLAGS[flag].value for name, flag in _OF_POLICY.items() if flags.FLAGS[flag].present}
    return [f'tflearn.jobs.policy_evaluation.evaluate_policy.{name} = {value!r}' for name, value in values.items()]


def _shared_arguments() -> Mapping[str, str]:
    """Returns which bindings of the evaluate job hold for this one."""
    names = ('make_environment', 'options', 'num_episodes', 'num_environments')
    return {name: f'evaluate.{name}' for name in names}
