"""tflearn-evaluate --policy: its flags."""

from collections.abc import Sequence

from absl import flags

from tflearn.config import job_config
from tflearn.core.errors import UserValueError

from . import data_flags, job_setup

_FLAGS = {
    'policy': 'policy',
    'train_step': 'train_step',
    'sampled': 'sampled',
    'num_episodes': 'episodes',
    'num_environments': 'num_environments',
    'num_processes': 'num_processes',
    'seed': 'seed',
    'output': 'output',
}


def main(description: str | None) -> None:
    """Runs the program, see `job_setup.main`; `description` begins its --help."""
    job_setup.main(
        'evaluate_policy', description, define_flags=_define, bindings=_bindings, shared=_shared_arguments,
        program='tflearn-evaluate', module='policy_evaluation',
    )  # fmt: skip


def _define() -> None:
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
    values = {name: flags.FLAGS[flag].value for name, flag in _FLAGS.items() if flags.FLAGS[flag].present}
    return [f'tflearn.jobs.policy_evaluation.evaluate_policy.{name} = {value!r}' for name, value in values.items()]


def _shared_arguments() -> job_config.SharedArguments:
    """Returns which bindings of the evaluate job hold for this one."""
    from tflearn.jobs.evaluate import evaluate  # After the flags are parsed: it loads TensorFlow.

    names = ('make_environment', 'options', 'num_episodes', 'num_environments')
    return {name: (evaluate, name) for name in names}
