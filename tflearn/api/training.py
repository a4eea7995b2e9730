"""`tflearn.train`: a whole run, from its configuration to an evaluated policy, as one call."""

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import pathlib
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, get_args

from absl import logging

from tflearn.actors import evaluation_record
from tflearn.api import process_run, synchronous_run
from tflearn.api.run_settings import RunSettings
from tflearn.config import files
from tflearn.config.reader import import_text
from tflearn.core import progress_log
from tflearn.core.errors import UserRuntimeError, UserTypeError, UserValueError
from tflearn.core.experience import Experience
from tflearn.core.types import (
    AgentFactory,
    EnvironmentFactory,
    VideoFactory,
    as_field,
    check_agent_factory,
    check_call,
)
from tflearn.environments import window
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, read_json, write_atomically
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions, Plateau
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train import train as train_job
from tflearn.jobs.train_settings import Initial, Intervals, grouped
from tflearn.launch import local
from tflearn.policies.policy_function import PolicyFunction, load_policy

_HEAD = 'from __gin__ import dynamic_registration\n'
_SCOPE = re.compile(r'part_\d+/(\w+\.)?')  # of a setting's name, with the alias of its module
_LITERALS = (bool, int, float, str, type(None))
Mode = Literal['synchronous', 'processes']

_PARTS = ('make_environment', 'make_agent', 'experience')
_EVALUATION = ('target_return', 'num_episodes', 'evaluate_options', 'plateau', 'record_video')


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that has reached its end.

    Attributes:
      run_dir: its files: checkpoints, exported policies, summaries, evaluations.
      reason: why training ended.
      train_step: train steps of the run.
      env_steps: environment steps of the run.
      evaluations: all evaluations of the greedy policy in their order: train_step, mean_return,
        returns (of each episode), mean_length, metrics (of the other numbers of the episodes), ...
      policy: the best policy by evaluation: `policy(observation)` -> action.
    """

    run_dir: RunDir
    reason: str
    train_step: int
    env_steps: int
    evaluations: tuple[Mapping[str, Any], ...]
    policy: PolicyFunction

    @property
    def returns(self) -> tuple[float, ...]:
        """The mean return of each evaluation, in their order."""
        return tuple(evaluation['mean_return'] for evaluation in self.evaluations)

    @property
    def best_return(self) -> float:
        """The mean return of `policy` in its evaluation."""
        evaluation = self.policy.metadata.get('evaluation') or {'mean_return': max(self.returns)}
        return float(evaluation['mean_return'])


def train(
    gin_file: str | os.PathLike[str] | None = None,
    *,
    root_dir: str | os.PathLike[str] | None = None,
    mode: Mode | None = None,
    gin_bindings: Sequence[str] = (),
    num_collectors: int = 1,
    make_environment: EnvironmentFactory | None = None,
    make_agent: AgentFactory | None = None,
    experience: Experience | None = None,
    num_train_steps: int | None = None,
    target_return: float | None = None,
    num_episodes: int | None = None,
    evaluate_options: EvaluateOptions | None = None,
    plateau: Plateau | None = None,
    record_video: bool | VideoFactory | None = None,
    **settings: Unpack[RunSettings],
) -> TrainedRun:
    """Trains an agent and evaluates its greedy policy, from a script or a notebook.

    What is to be trained is either a gin file (`tflearn.train('dqn_cartpole')`) or the run's parts
    as Python objects. The same call continues a run that was stopped (Ctrl-C and SIGTERM save a
    checkpoint), and returns the result of one that has reached its end. Each run needs its own
    directory.

    Args:
      gin_file: a path, or the name of a packaged gin file.
      root_dir: the run's directory; runs/<name of the gin file> by default.
      mode: 'processes' runs the jobs as processes of this machine, as tflearn-launch does, and is
        the default for a gin file. They import functions and classes by their names: those of a
        module, `functools.partial` of them, and dataclasses. 'synchronous' collects and trains
        alternately in this process.
      gin_bindings: gin statements that come after the gin file.
      num_collectors: how many collect jobs to start, in the mode 'processes'.
      make_environment: makes the environment.
      make_agent: makes the agent.
      experience: the data that the learner consumes; None is `EXPERIENCE` of the agent's module,
        which all agents of `tflearn.agents` have.
      num_train_steps: train steps at which training ends; None if `max_env_steps` or `max_secs` is
        given. A run that has ended goes on with a greater number.
      target_return: mean return (or `evaluate_options.target_metric`) at which training ends: of
        one evaluation, and of a second one to confirm it. None trains to the end.
      num_episodes: episodes of one evaluation; 20 by default.
      evaluate_options: limits of an evaluation, and another metric than the return for the target
        and the best policy. By default each exported policy is evaluated.
      plateau: ends training when evaluations get no better.
      record_video: True records videos of evaluations in <root_dir>/videos, of an environment of
        `gymnasium_env.make` (the extra `video`); for another one, a function of `folder` that makes
        it in a `gymnasium.wrappers.RecordVideo`.
      **settings: more arguments of `tflearn.jobs.synchronous.synchronous`: num_environments,
        learner_options, ...; and fields of its groups: max_env_steps, max_secs, seed,
        export_interval_steps, ... `RunSettings` lists them.

    Raises:
      TypeError: if arguments are missing, unknown, or cannot be combined.
      ValueError: if an argument is out of its range, the gin file is wrong, or the run directory
        cannot be used.
      RuntimeError: if a job failed.
    """
    given = {
        'make_environment': make_environment,
        'make_agent': make_agent,
        'experience': experience,
        'num_train_steps': num_train_steps,
        'target_return': target_return,
        'num_episodes': num_episodes,
        'evaluate_options': evaluate_options,
        'plateau': plateau,
        'record_video': record_video,
        **settings,
    }
    mode = mode or ('synchronous' if gin_file is None else 'processes')
    if mode not in get_args(Mode):
        raise UserValueError(f'got mode={mode!r}; need one of {", ".join(get_args(Mode))}')
    if mode == 'synchronous' and num_collectors != 1:
        raise UserValueError(f"got num_collectors={num_collectors} with mode='synchronous'; need mode='processes'")
    if gin_file is None:
        if gin_bindings:
            raise UserTypeError(
                f'got gin_bindings={list(gin_bindings)} without a gin file; need a gin file, or none of them'
            )
        arguments, evaluation = of_objects(root_dir, given)
        run_dir = RunDir(os.fspath(root_dir or ''))
        _write_gin(run_dir, arguments, evaluation, mode)
        if mode == 'synchronous':
            synchronous_run.of_objects(run_dir, arguments, evaluation)
        else:
            _run_processes(run_dir, str(run_dir.objects), (), num_collectors)
    else:
        gin_file = os.fspath(gin_file)
        _check_gin(given, gin_file, gin_bindings)
        run_dir = RunDir(root_dir or pathlib.Path('runs', pathlib.Path(gin_file).stem))
        if mode == 'synchronous':
            synchronous_run.of_gin_file(run_dir, gin_file, gin_bindings)
        else:
            _run_processes(run_dir, gin_file, gin_bindings, num_collectors)
    return result(run_dir)


def of_objects(
    root_dir: str | os.PathLike[str] | None, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Checks a run's parts as Python objects; returns the arguments of the synchronous and of the evaluate job.

    Args:
      root_dir: the run's directory.
      given: arguments of `train` that are of the run's parts, and its settings.
    """
    parts = {name: given.get(name) for name in _PARTS}
    if parts['experience'] is None:
        parts['experience'] = _own_experience(parts['make_agent'])
    _check_parts({**parts, 'root_dir': root_dir})
    settings = {name: value for name, value in given.items() if name not in (*_PARTS, *_EVALUATION)}
    evaluation = {name: given[name] for name in _EVALUATION if given.get(name) is not None}
    if (record := evaluation.pop('record_video', None)) is True:
        record = functools.partial(window.record, parts['make_environment'])
    evaluation |= {'record_video': record} if record else {}
    _check_settings(evaluation.get('num_episodes'), settings)
    _warn_of_late_exports(settings, evaluation.get('target_return'))
    evaluation['options'] = evaluation.pop('evaluate_options', EvaluateOptions('each'))
    return {**parts, 'num_train_steps': None, **settings}, evaluation


def _write_gin(run_dir: RunDir, arguments: Mapping[str, Any], evaluation: Mapping[str, Any], mode: Mode) -> None:
    """Writes the run's parts as its gin file, which programs take that act in its environment."""
    run_dir.make()
    try:
        write_atomically(run_dir.objects, gin_text(arguments, evaluation).encode())
    except UserTypeError as error:  # objects that no other process can import
        if mode == 'processes':
            raise UserTypeError(f"{error}; or take mode='synchronous'") from None
        run_dir.objects.unlink(missing_ok=True)
        with progress_log.printed(unless=local.in_notebook):
            text = 'the run itself is fine; tflearn-evaluate and tflearn play will need --gin_file, without %s: %s'
            logging.info(text, run_dir.objects, error)


def _own_experience(make_agent: Any) -> Experience | None:
    """Returns `EXPERIENCE` of the module of an agent's factory, or of the factory within it;
    None if there is none.
    """
    while isinstance(make_agent, functools.partial):
        make_agent = make_agent.keywords.get('make_agent', make_agent.func)
    module = sys.modules.get(getattr(make_agent, '__module__', ''))
    found = getattr(module, 'EXPERIENCE', None)
    return found if isinstance(found, Experience) else None


def _check_gin(others: Mapping[str, Any], gin_file: str, gin_bindings: Sequence[str]) -> None:
    """Checks what is given with a gin file, and that there is such a file."""
    if given := [name for name, value in others.items() if value is not None]:
        raise UserTypeError(
            f'got a gin file and {", ".join(given)}; need that bound in the gin file, or with '
            "gin_bindings=['train.StopConditions.num_train_steps = 1000', ...]"
        )
    if isinstance(gin_bindings, str):
        raise UserTypeError(f'got gin_bindings={gin_bindings!r}; need a list of gin statements')
    files.resolve(gin_file)


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Checks the run's parts as Python objects, as far as it can be done before they are used."""
    if missing := [name for name, value in parts.items() if value is None]:
        raise UserTypeError(f'got no {", ".join(missing)}; need {", ".join(parts)}, or a gin file instead')
    example = 'functools.partial(vector_env.in_process, MyEnvironment)'
    check_call('make_environment', parts['make_environment'], example, num_environments=1, seed=0)
    check_agent_factory('make_agent', parts['make_agent'])
    if not isinstance(parts['experience'], Experience):
        raise UserTypeError(f'got experience={parts["experience"]!r}; need a tflearn.Experience')


def _check_settings(num_episodes: int | None, settings: Mapping[str, Any]) -> None:
    """Checks what is given with the run's parts."""
    if num_episodes is not None and num_episodes < 1:
        raise UserValueError(f'got num_episodes={num_episodes}; need at least 1')
    known = [*RunSettings.__annotations__, 'num_train_steps']
    for name in settings:
        if name not in known:
            if field := as_field(name, {**RunSettings.__annotations__, **train.__annotations__}):
                raise UserTypeError(f'got {name}=...; need {field}')
            near = difflib.get_close_matches(name, known, n=1)
            advice = f'did you mean {near[0]}? ' if near else ''
            raise UserTypeError(f'got {name}=...; {advice}need one of {", ".join(known)}')
    exports = settings.get('exports', ExportOptions())
    if 'greedy_policy' not in exports.policies:
        raise UserValueError(f"got exports={exports}; need 'greedy_policy' among its policies: it is evaluated")


def _warn_of_late_exports(settings: Mapping[str, Any], target_return: float | None) -> None:
    """Warns if no policy is exported, and so none evaluated, before the last train step."""
    intervals, steps = grouped(settings).get('intervals', Intervals()), settings.get('num_train_steps')
    first = intervals.export_interval_steps
    if target_return is not None and steps is not None and intervals.unit == 'train_steps' and first >= steps:
        logging.warning(
            'got target_return=%g, export_interval_steps=%d and num_train_steps=%d: the target cannot end the run, '
            'since no policy is evaluated before its last train step; need a smaller export_interval_steps',
            target_return, first, steps,
        )  # fmt: skip


def check_main_thread() -> None:
    """Raises RuntimeError on another thread."""
    if threading.current_thread() is not threading.main_thread():
        raise UserRuntimeError(
            "got a call on another thread than the main one; need that one for mode='processes', which handles signals"
        )


def _run_processes(run_dir: RunDir, gin_file: str, gin_bindings: Sequence[str], num_collectors: int) -> None:
    """Runs the jobs of a gin file as processes,
    and raises how they ended if that was no success.
    """
    check_main_thread()
    with process_run.same_modules():
        code = process_run.run(
            run_dir, gin_file, gin_bindings, package=process_run.programs(), num_collectors=num_collectors
        )
    if code > 128:  # a signal ended the run: what it would have done to this process, it does now
        local.take_effect(code - 128)
    if code:
        error = UserValueError if code == 2 else RuntimeError
        raise error(f'got a run that failed in {run_dir.root}; the error is above; all logs are in {run_dir.logs}')


def result(run_dir: RunDir) -> TrainedRun:
    """Returns a run that has reached its end."""
    done = read_json(run_dir.done, messages.Done)
    if done is None:
        raise UserRuntimeError(f'got a run in {run_dir.root} without a result; need one that was not stopped')
    return TrainedRun(
        run_dir=run_dir,
        reason=done['reason'],
        train_step=done['train_step'],
        env_steps=done['env_steps'],
        evaluations=tuple(evaluation_record.read(run_dir.evaluations)),
        policy=load_policy(run_dir.root),
    )


class GinText:
    """Gathers the statements of a gin file.

    Its values are literals, lists, tuples and dicts of values, functions and classes of modules,
    `functools.partial` of them, and instances of dataclasses.
    """

    def __init__(self) -> None:
        """Begins with no statement."""
        self._imports: dict[str, str] = {}  # the names in the text, by module
        self._lines: list[str] = []
        self._num_scopes = 0

    def bind(self, name: str, value: Any) -> None:
        """Adds the binding of a macro, or of an argument that has a name in the text."""
        self._lines.append(f'{name} = {self._text(value, name)}')

    def bind_argument(self, function: Any, argument: str, value: Any) -> None:
        """Adds the binding of a function's argument."""
        self.bind(f'{self._name(function, argument)}.{argument}', value)

    def text(self, *included: str) -> str:
        """Returns the gin file, which begins with the included ones."""
        imports = [import_text(module, name) for module, name in self._imports.items()]
        files = [f"include '{file}'" for file in included]
        return '\n'.join([_HEAD, *imports, '', *files, '', *self._lines, ''])

    def _text(self, value: Any, what: str) -> str:
        """Returns a value as gin writes it; `what` it is, for an error."""
        if isinstance(value, _LITERALS):
            return repr(value)
        if isinstance(value, list | tuple):
            items = ', '.join(self._text(each, what) for each in value)
            return f'[{items}]' if isinstance(value, list) else f'({items}{"," if len(value) == 1 else ""})'
        if isinstance(value, Mapping):
            items = ', '.join(f'{self._text(key, what)}: {self._text(each, what)}' for key, each in value.items())
            return f'{{{items}}}'
        if isinstance(value, functools.partial):
            given = inspect.signature(value.func).bind_partial(*value.args).arguments
            return self._scoped(value.func, {**given, **value.keywords}, what)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            defaults = {name: each.default for name, each in inspect.signature(type(value)).parameters.items()}
            changed = {name: each for name, each in fields.items() if each is not defaults[name]}
            return f'{self._scoped(type(value), changed, what)}()'
        return f'@{self._name(value, what)}'

    def _scoped(self, function: Any, arguments: Mapping[str, Any], what: str) -> str:
        """Binds arguments in a scope of their own,
        and returns the reference to the function there.
        """
        name = self._name(function, what)
        if not arguments:
            return f'@{name}'
        self._num_scopes += 1
        scoped = f'part_{self._num_scopes}/{name}'
        for argument, value in arguments.items():
            self.bind(f'{scoped}.{argument}', value)
        return f'@{scoped}'

    def _name(self, function: Any, what: str) -> str:
        """Returns the name of a function or class in the text, and imports its module there."""
        module, name = getattr(function, '__module__', None) or 'builtins', getattr(function, '__qualname__', '')
        if module == '__main__' or getattr(importlib.import_module(module), name, None) is not function:
            given, setting = f'{module}.{name}' if name else repr(function), _SCOPE.sub('', what)
            raise UserTypeError(
                f'got {given} in {setting} for several processes; need what they can import: functions and classes '
                'of a module (not of the program itself), functools.partial of them, dataclasses, and literals'
            )
        last = module.rpartition('.')[2]
        alias = last if last not in self._imports.values() else f'{last}_{len(self._imports)}'
        return f'{self._imports.setdefault(module, alias)}.{name}'


def gin_text(arguments: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    """Returns the gin file of a run in several processes;
    the arguments are those of `synchronous_run.of_objects`.
    """
    given, made = grouped(arguments), GinText()
    initial, intervals = given.get('initial', Initial()), given.get('intervals', Intervals())
    has_interval = bool({'intervals', 'publish_interval_steps'} & arguments.keys())
    if not given['experience'].replay.learns_from_old_items and not has_interval:
        # Data of the newest weights.
        given['intervals'] = dataclasses.replace(intervals, publish_interval_steps=1)
    if initial.seed is not None:
        options = given.get('collect_options', CollectOptions())
        if options.seed is None:
            given['collect_options'] = dataclasses.replace(options, seed=initial.seed)
        evaluation = {'seed': initial.seed + synchronous_run.EVALUATION_SEED, **evaluation}
    made.bind('demonstrations', initial.demonstrations)
    jobs = synchronous_run.shared_arguments()
    for name, value in given.items():
        if name in ('make_environment', 'make_agent', 'experience'):
            made.bind(name, value)
        else:
            job, argument = jobs[name].split('.')
            made.bind_argument({'train': train_job, 'collect': collect}[job], argument, value)
    for name, value in evaluation.items():
        made.bind_argument(evaluate, name, value)
    return made.text('jobs.gin')
