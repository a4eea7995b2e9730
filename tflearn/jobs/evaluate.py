"""The evaluate job: evaluates new policies until the run has ended."""

import contextlib
import dataclasses
import functools
import math
import pathlib
import threading
from collections.abc import Callable
from typing import Any

from absl import logging

from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import Evaluation, EvaluationRecord, value
from tflearn.actors.evaluator import EpisodeStatistics, Evaluator, Progress
from tflearn.actors.exploration import EpsilonPolicy
from tflearn.core import life, side_tasks
from tflearn.core.action_mask import ActionMask
from tflearn.core.errors import UserError, UserValueError, is_temporary
from tflearn.core.experience import Experience
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import (
    AgentFactory,
    BatchedEnvironment,
    EnvironmentFactory,
    EnvironmentSpecs,
    EvaluationPolicy,
    VideoFactory,
)
from tflearn.core.waiting import Stopped, wait_until
from tflearn.environments import vector_env
from tflearn.files import messages
from tflearn.files.run_dir import read_json, write_json
from tflearn.jobs import evaluated_policies
from tflearn.jobs.evaluate_settings import EvaluateOptions, Plateau
from tflearn.jobs.evaluated_policies import Candidate, ExportedPolicies
from tflearn.jobs.evaluation_processes import EvaluationProcesses, share
from tflearn.jobs.evaluation_report import EvaluationReport
from tflearn.jobs.run import Run
from tflearn.policies import added_metadata, versions
from tflearn.policies.exporter import ACTION_MASK
from tflearn.policies.loader import VersionGone

# Metrics of the evaluation that the best policy's metadata holds.
_IN_METADATA = (
    'mean_return',
    'mean_return_interval',
    'num_episodes',
    'returns',
    'mean_length',
    'metrics',
    'incomplete',
)


@checked
def evaluate(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    num_episodes: PositiveInt = 20,
    num_environments: PositiveInt = 10,
    num_processes: PositiveInt = 1,
    target_return: float | None = None,
    plateau: Plateau | None = None,
    idle_timeout_secs: float = 3600.0,
    seed: int | None = None,
    options: EvaluateOptions = EvaluateOptions(),
    record_video: VideoFactory | None = None,
    make_agent: AgentFactory | None = None,
    experience: Experience | None = None,
) -> None:
    """Evaluates new policies, and ends the run when one is good enough.

    It appends to `RunDir.evaluations`, draws the learning curve, keeps a link `best` to the best
    version, and writes `RunDir.done` when the train job has finished and its last policy is
    evaluated. A job that is started again continues where it stopped.

    Args:
      run: the run, to whose directory the train job exports its policies.
      make_environment: makes the environment; its settings may differ from those of training.
      num_episodes: the number of episodes of an evaluation.
      num_environments: the number of environments stepped together by each process; never more than
        its episodes.
      num_processes: processes that share the episodes of each evaluation; more than one only in a
        job of its own.
      target_return: asks the train job to finish when the mean return, or that of
        `options.target_metric`, reaches this value, and reaches it again in `num_episodes` other
        episodes of the same policy. None trains to the end.
      plateau: asks the train job to finish when evaluations get no better. None trains to the end.
      idle_timeout_secs: how long to wait for the next policy, and for the end of training.
      seed: the environment's seed; None draws one.
      options: which policies are evaluated, and how they act.
      record_video: makes an environment that records videos; None records none.
      make_agent: makes the run's agent; only for `follow='weights'`, like the next one.
      experience: the run's experience settings.

    Raises:
      TimeoutError: if no policy is found in time.
      ValueError: for invalid arguments, a policy of another environment, a damaged file, or a train
        job that finished without a policy.
    """
    if run.is_done('; --policy=best evaluates a policy of it again'):
        return
    _check(run, options, num_processes, make_agent is not None and experience is not None)
    if run.hooks.on_evaluated is not None and options.follow != 'in_loop':
        run.hooks.on_evaluated(math.inf)

    def make_runner(index: int, report: Callable[[Progress], None] = lambda progress: None) -> _EpisodeRunner:
        episodes = share(num_episodes, num_processes, index)
        own_seed = None if seed is None else seed + index * num_environments
        environment = make_environment(num_environments=min(num_environments, episodes), seed=own_seed)
        return _EpisodeRunner(environment, options, episodes, own_seed, report, run.stop)

    def player(index: int) -> Callable[[pathlib.Path], EpisodeStatistics]:
        runner = make_runner(index)
        return lambda path: runner.run(Candidate.load(path, runner.environment.specs))

    with contextlib.ExitStack() as ending:
        others = EvaluationProcesses(player, num_processes, num_episodes, run.stop)
        ending.enter_context(contextlib.closing(others))
        report = ending.enter_context(contextlib.closing(EvaluationReport(run.dir, options, target_return)))
        try:
            runner = make_runner(0, report.progress)
            ending.enter_context(contextlib.closing(runner.environment))
            source = _source(run, options, runner.environment.specs, make_agent, experience)
            ending.enter_context(contextlib.closing(source))
            target = _Target(options, target_return, plateau)
            here = functools.partial(runner.run, record_video=record_video, videos=run.dir.videos)

            def alive() -> None:
                report.set_state('running')
                if run.stop.is_set():
                    raise Stopped('stopped within a step of the environments')

            def play(candidate: Candidate) -> EpisodeStatistics:
                with life.reported(alive):
                    return others.play(candidate.path, lambda _: here(candidate), alive)

            _Evaluation(run, report, source, play, target, idle_timeout_secs).run()
        except Stopped:
            report.set_state('stopped')
        except BaseException as error:
            report.set_state(f'failed: {error}')
            raise


def _check(run: Run, options: EvaluateOptions, num_processes: int, builds_agent: bool) -> None:
    if run.hooks.on_evaluated is None and options.follow == 'in_loop':
        raise UserValueError(
            "got EvaluateOptions.follow='in_loop' in a process of its own; need "
            "tflearn.train(mode='synchronous'), or 'each'"
        )
    if options.follow == 'weights' and not builds_agent:
        raise UserValueError(
            "got EvaluateOptions.follow='weights' without make_agent and experience; need both; "
            'bind evaluate.evaluate.make_agent = %make_agent and evaluate.evaluate.experience = %experience'
        )
    if num_processes > 1 and (run.hooks.on_evaluated is not None or options.follow == 'served'):
        where = 'beside training in one process' if run.hooks.on_evaluated else "with EvaluateOptions.follow='served'"
        raise UserValueError(f'got num_processes={num_processes} {where}; need 1')


def _source(
    run: Run,
    options: EvaluateOptions,
    specs: EnvironmentSpecs,
    make_agent: AgentFactory | None,
    experience: Experience | None,
) -> ExportedPolicies:
    if options.follow == 'weights' and make_agent and experience:
        return evaluated_policies.PublishedWeights(run, make_agent, experience, specs)
    if options.follow == 'served':
        return evaluated_policies.ServedPolicies(run, options, specs)
    return evaluated_policies.ExportedPolicies(run, options.policy, specs, options.follow in ('each', 'in_loop'))


@dataclasses.dataclass(frozen=True)
class _Target:
    """What evaluations are compared by.

    Attributes:
      options: metric and limits.
      goal: the metric's value that ends the run; None: none does.
      plateau: ends the run too.
    """

    options: EvaluateOptions
    goal: float | None
    plateau: Plateau | None

    def is_better(self, evaluation: Evaluation, other: Evaluation) -> bool:
        """Whether the first one is better; one that is incomplete is never better than a complete one."""
        return self._rank(evaluation) > self._rank(other)

    def is_reached(self, evaluation: Evaluation) -> bool:
        """Whether a complete evaluation reaches the goal."""
        return self.goal is not None and self._rank(evaluation) >= (True, 0.0, self._sign * self.goal)

    def plateau_reason(self, record: EvaluationRecord) -> str | None:
        """Returns why the run is to end if the newest evaluations are no better than an earlier one; else None."""
        if self.plateau is None:
            return None
        best, best_step, num_worse = -math.inf, None, 0
        for evaluation in learning_curve.current(record.evaluations):
            rank = self._rank(dict(evaluation))
            if rank > (True, 0.0, best + self.plateau.min_improvement):
                best, best_step, num_worse = rank[-1], evaluation['train_step'], 0
            else:
                num_worse += 1
        patience = self.plateau.patience
        reason = f'Plateau.patience {patience} reached: the best evaluation is that of train step {best_step}'
        return reason if num_worse >= patience else None

    def _rank(self, evaluation: Evaluation) -> tuple[bool, float, float]:
        """Returns whether it is complete, 0 or how far it is above its limits (negative), and its score."""
        found, costs = value(evaluation, self.options.target_metric), self.options.limits.items()
        # None: no episode has this number.
        margins = (-math.inf if (cost := value(evaluation, name)) is None else most - cost for name, most in costs)
        score = -math.inf if found is None else self._sign * found
        return 'incomplete' not in evaluation, min([0.0, *margins]), score

    @property
    def _sign(self) -> float:
        return -1.0 if self.options.lower_is_better else 1.0

    def __str__(self) -> str:
        name = 'target_return' if self.options.target_metric == 'return' else f'target {self.options.target_metric}'
        return f'{name} {self.goal:g}'


class _EpisodeRunner:
    """Runs a process's episodes of an evaluation, and records videos of additional ones.

    Attributes:
      environment: the environments.
    """

    def __init__(
        self,
        environment: BatchedEnvironment,
        options: EvaluateOptions,
        num_episodes: int,
        seed: int | None,
        report: Callable[[Progress], None],
        stop: threading.Event,
    ):
        self.environment, self._options = environment, options
        self._seed, self._report, self._stop = seed, report, stop
        self._evaluator = self._evaluator_of(environment, num_episodes)
        self._num_runs = 0
        self._acting(None)  # fails early if random actions are not possible

    def run(
        self, candidate: Candidate, record_video: VideoFactory | None = None, videos: pathlib.Path = pathlib.Path()
    ) -> EpisodeStatistics:
        """Returns the statistics of a policy's episodes."""
        policy = self._acting(candidate.policy, candidate.metadata.get(ACTION_MASK))
        statistics = self._evaluator.run(policy, self._stop)
        if record_video and self._num_runs % self._options.videos.interval == 0:
            folder = str(videos / f'train_step_{candidate.train_step}')
            with (
                side_tasks.guarded(f'record videos in {videos}', _is_of_side_task),
                contextlib.closing(vector_env.of_one(functools.partial(record_video, folder=folder))) as recorded,
            ):
                self._evaluator_of(recorded, self._options.videos.episodes).run(policy, self._stop)
        self._num_runs += 1
        return statistics

    def _evaluator_of(self, environment: BatchedEnvironment, num_episodes: int) -> Evaluator:
        options = self._options
        limits = num_episodes, options.max_steps_per_episode, options.max_secs
        return Evaluator(environment, *limits, self._report, options.on_episode)

    def _acting(self, policy: Any, mask: str | None = None) -> EvaluationPolicy:
        """Returns a policy that acts with `options.epsilon` and the part `mask` of the observation."""
        if not self._options.epsilon and mask is None:
            return policy
        specs = self.environment.specs
        seed = None if self._seed is None else self._seed + self._num_runs
        action_mask = None if mask is None else ActionMask(specs, mask)
        return EpsilonPolicy(policy, self._options.epsilon, specs.action, seed, action_mask)


def _is_of_side_task(error: Exception) -> bool:
    """Returns whether an error is neither the end of the job nor for the user to correct."""
    return not isinstance(error, Stopped | UserError)


class _Evaluation:
    """Evaluates policies until the end of the run."""

    def __init__(
        self,
        run: Run,
        report: EvaluationReport,
        source: ExportedPolicies,
        play: Callable[[Candidate], EpisodeStatistics],
        target: _Target,
        idle_timeout_secs: float,
    ):
        self._run_dir, self._report, self._source, self._play = run.dir, report, source, play
        self._target, self._stop, self._on_evaluated = target, run.stop, run.hooks.on_evaluated
        self._connect_timeout_secs, self._idle_timeout_secs = run.connect_timeout_secs, idle_timeout_secs
        self._last: Evaluation | None = None
        # The best one, whose mark could not be written.
        self._unmarked: tuple[pathlib.Path, Evaluation] | None = None
        for step in versions.versions(source.directory):  # marked by an earlier process of this job
            versions.unkeep(source.directory / str(step), versions.IN_USE)

    def run(self) -> None:
        """Evaluates until training has ended, then writes DONE."""
        request = self._earlier_request()
        while request is None and (candidate := self._next_candidate()):
            evaluation = self._evaluate(candidate)
            if evaluation is not None and self._target.is_reached(evaluation):
                request = self._confirm(candidate)
            elif self._source.result() is None and (reason := self._target.plateau_reason(self._report.record)):
                # Training ends; the policies that it still exports are evaluated too.
                write_json(self._run_dir.stop_request, {'reason': reason})
        self._finish(request)

    def _next_candidate(self) -> Candidate | None:
        """Waits for a policy that is not in the record.
        Returns None if training has ended and there is none.
        """

        def poll() -> tuple[Candidate | None] | None:
            with side_tasks.guarded(f'look for {self._source.what}', is_temporary):
                # Before the search for policies: the train job writes its result after its last
                # one.
                ended, newest = self._source.result() is not None, self._source.newest()
                candidate = self._source.find(self._report.record)
                if candidate is None and self._on_evaluated:
                    self._on_evaluated(-1 if newest is None else newest)
                return (candidate,) if candidate or ended else None
            return None

        if (found := poll()) is None:
            self._report.set_state('waiting for a policy')
            newest, what, secs = None, self._source.what, self._connect_timeout_secs
            with side_tasks.guarded(f'look for {what}', is_temporary):
                newest = self._source.newest()
            if newest is not None:
                what += f' other than that of step {newest} (--policy evaluates one at once)'
                secs = self._idle_timeout_secs
            found = wait_until(poll, what, secs, self._stop)
        return found[0]

    def _evaluate(self, candidate: Candidate) -> Evaluation | None:
        """Evaluates a policy; returns None if it was removed meanwhile."""
        self._report.set_state('running')
        # It may become the best one, so it must not be pruned meanwhile.
        if not _keep(candidate, versions.IN_USE):
            logging.info('the policy of step %d is gone; it is not evaluated', candidate.train_step)
            return None
        try:
            evaluation = self._report.add(candidate, self._play(candidate))
            if candidate.path:
                self._mark_best(candidate.path, evaluation)
        except VersionGone as gone:
            logging.info('%s; its evaluation is dropped', gone)
            return None
        finally:
            _unkeep(candidate, versions.IN_USE)
        self._last = evaluation
        return evaluation

    def _mark_best(self, path: pathlib.Path, evaluation: Evaluation) -> None:
        """Makes the link `best` point to a version if it is the best;
        or to the one that could not be marked before.
        """
        if self._unmarked is not None and not self._target.is_better(evaluation, self._unmarked[1]):
            path, evaluation = self._unmarked
        with side_tasks.guarded(f'mark the best policy in {path.parent}', is_temporary):
            if self._is_best(evaluation):
                self._unmarked = path, evaluation
                facts = {key: evaluation[key] for key in _IN_METADATA if key in evaluation}
                if added_metadata.add(path, evaluation=facts):
                    versions.point_best(path)
            self._unmarked = None

    def _is_best(self, evaluation: Evaluation) -> bool:
        """Returns whether the policy that was just evaluated is better than the one marked as the best."""
        best = versions.best_version(self._source.directory)
        if best is None:
            return True
        known = self._report.record.find(
            read_json(self._source.directory / str(best) / versions.METADATA, messages.Metadata) or {}
        )
        return known is None or self._target.is_better(evaluation, known)

    def _confirm(self, candidate: Candidate) -> dict[str, Any] | None:
        """Evaluates the policy again. If it reaches the target again, asks the train job to finish;
        returns that.
        """
        # The train job must not prune it from now on, since it may become the run's result.
        if not _keep(candidate, versions.KEPT):
            return None
        evaluation = None
        try:
            evaluation = self._evaluate(candidate)
        finally:
            if evaluation is None or not self._target.is_reached(evaluation):
                _unkeep(candidate, versions.KEPT)
        if evaluation is None or not self._target.is_reached(evaluation):
            logging.info('reached %s only once; training continues', self._target)
            return None
        reason = f'{self._target} reached at train step {candidate.train_step}'
        request = {'reason': reason, 'evaluation': evaluation}
        write_json(self._run_dir.stop_request, request)
        return request

    def _earlier_request(self) -> dict[str, Any] | None:
        """Returns the request that an earlier process of this job wrote,
        if the policy still exists.
        """
        request = read_json(self._run_dir.stop_request, messages.StopRequest)
        if request is None or not {'reason', 'evaluation'} <= request.keys():
            return None
        return request if versions.is_complete(self._version(request['evaluation'])) else None

    def _version(self, evaluation: Evaluation) -> pathlib.Path:
        return self._source.directory / str(evaluation['train_step'])

    def _finish(self, request: dict[str, Any] | None) -> None:
        """Waits for the train job's result and writes DONE."""
        self._report.set_state('waiting for the end of training')
        if self._on_evaluated:
            self._on_evaluated(math.inf)
        result = wait_until(self._source.result, 'the end of training', self._idle_timeout_secs, self._stop)
        evaluation = request['evaluation'] if request else self._last or self._known()
        if evaluation is None:
            raise UserValueError(
                f'got a train job that finished without a policy in {self._source.directory}; need one to evaluate'
            )
        self._report.draw()
        keys = ('train_step', 'env_steps', 'mean_return', 'num_episodes', 'returns', 'metrics', 'incomplete')
        done = {
            'reason': request['reason'] if request else result['reason'],
            **{key: result[key] for key in ('train_step', 'env_steps', 'seconds')},
            'policy': str(self._version(evaluation).relative_to(self._run_dir.root)),
            'evaluation': {key: evaluation[key] for key in keys if key in evaluation},
            'best_policy': self._best_policy(),
        }
        write_json(self._run_dir.done, done)
        self._report.set_state(f'finished: {done["reason"]}')
        logging.info('done: %s; mean return %.2f', done['reason'], evaluation['mean_return'])

    def _known(self) -> Evaluation | None:
        """Returns the evaluation of the newest policy by an earlier process of this job."""
        newest = self._source.newest()
        if newest is None:
            return None
        metadata = read_json(self._source.directory / str(newest) / versions.METADATA, messages.Metadata)
        return self._report.record.find(metadata or {'train_step': newest})

    def _best_policy(self) -> str | None:
        best = versions.best_version(self._source.directory)
        return None if best is None else str((self._source.directory / str(best)).relative_to(self._run_dir.root))


def _keep(candidate: Candidate, marker: str) -> bool:
    """Exempts a version from pruning, see `versions.keep`;
    a mark that cannot be written is reported, and left out.
    """
    if candidate.path is not None:
        with side_tasks.guarded(f'mark {candidate.path} as {marker}', is_temporary):
            return versions.keep(candidate.path, marker)
    return True


def _unkeep(candidate: Candidate, marker: str) -> None:
    if candidate.path is not None:
        with side_tasks.guarded(f'mark {candidate.path} no more as {marker}', is_temporary):
            versions.unkeep(candidate.path, marker)
