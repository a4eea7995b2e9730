"""The job evaluate_policy: evaluates one policy, of any origin, in an environment, and keeps the result."""

import contextlib
import itertools
import os
import pathlib
import time
from typing import Any

from tflearn.actors.evaluator import EpisodeStatistics, Evaluator
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import EnvironmentFactory
from tflearn.data import metadata
from tflearn.files.run_dir import local_path, write_json
from tflearn.jobs import chosen_policy
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.evaluation_processes import EvaluationProcesses, share
from tflearn.jobs.evaluation_report import describe
from tflearn.jobs.run import Run
from tflearn.policies import external


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
      sampled: whether the policy draws its actions from its distribution, instead of taking the mode.
      num_episodes: the number of episodes, of all processes together.
      num_environments: environments stepped together by each process; never more than its episodes.
      num_processes: processes that play; more than one only in a program that has not used TensorFlow yet.
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

    def play(index: int) -> EpisodeStatistics:
        """Plays the share of a process; the facts describe its policy."""
        found = chosen_policy.find(run.dir, policy, train_step)
        found = chosen_policy.sampled(found) if sampled else found
        episodes = share(num_episodes, num_processes, index)
        first_seed = seed + index * num_environments
        with contextlib.closing(
            make_environment(num_environments=min(num_environments, episodes), seed=first_seed)
        ) as environment:
            acting, _ = chosen_policy.acting(found, environment.specs, options.epsilon, first_seed)
            limits = options.max_steps_per_episode, options.max_secs
            evaluator = Evaluator(environment, episodes, *limits, on_episode=options.on_episode)
            statistics = evaluator.run(acting, run.stop)
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
    others = EvaluationProcesses(lambda index: lambda _: play(index), num_processes, num_episodes, run.stop)
    with contextlib.closing(others):
        statistics = others.play(None, lambda _: play(0))
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
