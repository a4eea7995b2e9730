"""The DeepMind control suite, and any other dm_env environment (extra `dm-control`)."""

import functools
from typing import TYPE_CHECKING, Any, Literal

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import registry, vector_env
from tflearn.environments.vector_env import OnNonfinite

if TYPE_CHECKING:
    from tflearn.environments.dm_env_adapter import MakeDmEnvironment

Vectorization = Literal['in_process', 'worker_processes']


@checked
def make(
    domain: str,
    task: str,
    num_environments: PositiveInt,
    seed: int | None,
    vectorization: Vectorization = 'in_process',
    flatten_observations: bool = True,
    step_timeout_secs: PositiveFloat = vector_env.STEP_TIMEOUT_SECS,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of a task of the control suite.

    Args:
      domain: the domain's name, such as 'cartpole'.
      task: the task's name, such as 'swingup'.
      num_environments: the number of environments, which are stepped together.
      seed: environment i is seeded with seed + i; None draws the seeds.
      vectorization: 'in_process' steps them one after the other, 'worker_processes' in one process
        each.
      flatten_observations: whether to flatten an observation, a dict, to one vector.
      step_timeout_secs: the longest step or reset; a worker process that takes longer is replaced.
      on_nonfinite: what happens to an environment whose observation or reward is not finite, see
        `gymnasium_env.make`.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: for an unknown task, or if dm_control is not installed.
    """
    with registry.needed(f'{domain}-{task}'):
        from dm_control import suite

        from tflearn.environments.dm_env_adapter import load
    if (domain, task) not in suite.ALL_TASKS:
        tasks = ', '.join(f'{known}-{its_task}' for known, its_task in suite.ALL_TASKS if domain in (known, its_task))
        names = tasks or ', '.join(sorted(suite.TASKS_BY_DOMAIN))
        raise UserValueError(
            f'got domain={domain!r}, task={task!r}; need a task of the control suite; choose from {names}'
        )
    make_one = functools.partial(load, domain, task)
    options: Any = (vectorization, flatten_observations, step_timeout_secs, on_nonfinite)
    return from_dm_env(make_one, num_environments, seed, *options)


@checked
def from_dm_env(
    make_one: 'MakeDmEnvironment',
    num_environments: PositiveInt,
    seed: int | None,
    vectorization: Vectorization = 'in_process',
    flatten_observations: bool = True,
    step_timeout_secs: PositiveFloat = vector_env.STEP_TIMEOUT_SECS,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of a dm_env environment; `make_one` makes one from a seed (None draws it).
    See `make`.
    """
    with registry.needed(str(make_one)):
        from tflearn.environments.dm_env_adapter import adapt
    make_env = functools.partial(adapt, make_one, flatten_observations)
    if vectorization == 'in_process':
        return vector_env.in_process(make_env, num_environments, seed, on_nonfinite)
    return vector_env.in_worker_processes(make_env, num_environments, seed, step_timeout_secs, on_nonfinite)
