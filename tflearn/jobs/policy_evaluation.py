"""Evaluates one policy, of any origin, in an environment: the job evaluate_policy keeps the result,
a call returns it.

statistics = tflearn.evaluate('runs/ppo', make_environment, num_episodes=100)
print(statistics.mean_return, statistics.mean_return_interval)
"""

import contextlib
import itertools
import os
import pathlib
import threading
import time
from typing import Any

from tf_agents.policies import tf_policy

from tflearn.actors.evaluator import EpisodeStatistics, Evaluator
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import EnvironmentFactory, check_call
from tflearn.data import metadata
from tflearn.environments import window
from tflearn.files.run_dir import local_path, write_json
from tflearn.jobs import chosen_policy
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.evaluation_processes import EvaluationProcesses, share
from tflearn.jobs.evaluation_report import describe
from tflearn.jobs.run import Run
from tflearn.policies import external
from tflearn.policies.policy_function import PolicyFunction, load_policy


@checked
def evaluate(
    policy: PolicyFunction | str | os.PathLike[str] | external.ActFunction | tf_policy.TFPolicy,
    make_environment: EnvironmentFactory,
    num_episodes: PositiveInt = 20,
    seed: int = 0,
    *,
    num_environments: PositiveInt = 10,
    record_video: str | os.PathLike[str] | None = None,
    options: EvaluateOptions = EvaluateOptions(),
) -> EpisodeStatistics:
    """Plays episodes of a policy; the same arguments give the same episodes.
    Nothing of a run is changed.

    Args:
      policy: a loaded policy, what `load_policy` takes, a function of a batch of observations, a
        policy of TF-Agents such as `learner.agent.policy`, or 'random'.
      make_environment: makes the environment, as for `train`.
      num_episodes: the number of episodes.
      seed: the seed of the environments.
      num_environments: environments stepped together; never more than the episodes.
      record_video: a directory for a video of each episode, of one environment of
        `gymnasium_env.make` (the extra `video`).
      options: the limits of the evaluation, and the share of random actions.

    Returns:
      The episodes: `mean_return`, `mean_return_interval`, `std_return`, `returns`, `lengths`, and
      `means` of what the environment's info has.

    Raises:
      TypeError, ValueError: for arguments of other kinds, or a policy of another environment.
    """
    check_call('make_environment', make_environment, 'gymnasium_env.make', num_environments=1, seed=0)
    found: Any = policy
    if policy == chosen_policy.RANDOM:
        found = None
    elif isinstance(policy, str | os.PathLike):
        found = load_policy(policy).loaded
    elif isinstance(policy, PolicyFunction):
        found = policy.loaded
    elif not isinstance(policy, tf_policy.TFPolicy):
        external.check_function(policy)
    if record_video is not None:
        make_environment, num_environments = window.Stage(make_environment, os.fspath(record_video), None).make, 1
    return play(found, make_environment, num_episodes, num_environments, seed, options)


def play(
    policy: Any,
    make_environment: EnvironmentFactory,
    num_episodes: int,
    num_environments: int,
    seed: int,
    options: EvaluateOptions,
    stop: threading.Event | None = None,
) -> EpisodeStatistics:
    """Plays episodes of what `chosen_policy.find` has found; see `evaluate_policy`."""
    number = min(num_environments, num_episodes)
    with contextlib.closing(make_environment(num_environments=number, seed=seed)) as environment:
        if isinstance(policy, tf_policy.TFPolicy):
            policy = chosen_policy.compiled(policy, environment.specs, number)
        acting, _ = chosen_policy.acting(policy, environment.specs, options.epsilon, seed)
        limits = options.max_steps_per_episode, options.max_secs
        return Evaluator(environment, num_episodes, *limits, on_episode=options.on_episode).run(acting, stop)


@checked
def evaluate_policy(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    policy: str | external.ActFunction = 'greedy_policy',
    train_step: int | None = None,
    sampled: bool = False,
    num_episodes: PositiveInt = 20,
    num_environments: PositiveInt = 10,
    num_processes: PositiveInt = 1,
    seed: int = 0,
    options: EvaluateOptions = EvaluateOptions(),
    output: str | None = None,
) -> str:
    """Evaluates a policy once. The evaluations of the run, and its best policy, stay as they are.

    Args:
      run: the run; nothing is written if it is stopped.
      make_environment: makes the environment.
      policy: what acts; see `chosen_policy.find`.
      train_step: the train step of the policy's version.
      sampled: whether the policy draws its actions from its distribution, instead of taking the
        mode.
      num_episodes: the number of episodes, of all processes together.
      num_environments: environments stepped together by each process; never more than its episodes.
      num_processes: processes that play; more than one only in a program that has not used
        TensorFlow yet.
      seed: the seed of the environments.
      options: the limits of the evaluation, and the share of random actions.
      output: a new JSON file for the result; None is the next one in `RunDir.policy_evaluations`.

    Returns:
      The result as text.

    Raises:
      ValueError: if there is no such policy, it is of another environment, or the output exists.
      RuntimeError: if another process died.
      Stopped: if `stop` was set.
    """
    written = None if output is None else local_path(output, 'output')
    if written is not None and os.path.lexists(written):
        raise UserValueError(f'got the output {written}, which exists; need a new file')

    facts: dict[str, Any] = {}

    def play_share(index: int) -> EpisodeStatistics:
        """Plays the share of a process; the facts describe its policy."""
        found = chosen_policy.find(run.dir, policy, train_step)
        found = chosen_policy.sampled(found) if sampled else found
        episodes = share(num_episodes, num_processes, index)
        first_seed = seed + index * num_environments
        statistics = play(found, make_environment, episodes, num_environments, first_seed, options, run.stop)
        path = getattr(found, 'path', None)
        facts.update(
            {
                'policy': policy if isinstance(policy, str) else external.function_name(policy),
                'path': None if path is None else str(os.path.realpath(path)),
                'train_step': getattr(found, 'train_step', None),
            }
        )
        return statistics

    begun = time.monotonic()
    others = EvaluationProcesses(lambda index: lambda _: play_share(index), num_processes, num_episodes, run.stop)
    with contextlib.closing(others):
        statistics = others.play(None, lambda _: play_share(0))
    facts |= {
        'sampled': sampled,
        'epsilon': options.epsilon,
        'seed': seed,
        'num_processes': num_processes,
        'seconds': time.monotonic() - begun,
        'evaluated_at': time.time(),
        **metadata.origin(make_environment, run.hooks.describe()),
    }
    written = written or _next_file(run.dir.policy_evaluations, facts)
    facts |= {**statistics.as_json(), 'std_return': statistics.std_return, 'lengths': statistics.lengths}
    write_json(written, {**facts, 'incomplete': statistics.incomplete or None})
    return f'{_label(facts)}: {describe(statistics)}\nwritten to {written}'


def _label(facts: dict[str, Any]) -> str:
    step = '' if facts['train_step'] is None else f', train step {facts["train_step"]}'
    return f'{facts["path"] or facts["policy"]}{step}{", sampled" if facts["sampled"] else ""}'


def _next_file(folder: pathlib.Path, facts: dict[str, Any]) -> pathlib.Path:
    """Returns a new path, which no other program that runs now chooses."""
    folder.mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(facts['path'] or facts['policy'])
    name = '-'.join(path.parts[-2:] if path.name.isdecimal() else path.parts[-1:]).replace(':', '-')
    for number in itertools.count(1):
        chosen = folder / f'{name}{"-sampled" if facts["sampled"] else ""}-{number}.json'
        with contextlib.suppress(FileExistsError):
            (folder / f'.{chosen.name}').touch(exist_ok=False)  # which stays
            return chosen
    raise AssertionError('unreachable')
