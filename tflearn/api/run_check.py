"""Checks a run's configuration before its jobs start,
in a process that loads the modules which its gin files import.

`ask` is for programs that load no TensorFlow; they begin with the answer. It takes a fork of a warm
parent, which has loaded the libraries of the jobs, or else a process of its own, which takes some
seconds.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.config.going_on import Effective
from tflearn.core import errors, system_errors
from tflearn.core.errors import UserError, UserRuntimeError, UserValueError
from tflearn.files.run_dir import read_json
from tflearn.launch.warm_parent import WarmParent, start_program

_TIMEOUT_SECS = 120.0
_POLL_SECS = 0.02
_MODULE = 'tflearn.api.run_check'
_EXPERIENCE = 'tflearn.core.experience'
_LAST_LINES = 20


@dataclasses.dataclass(frozen=True)
class Question:
    """What is to be checked.

    Attributes:
      gin_file: its path.
      gin_bindings: gin statements that come after it.
      jobs: the modules of the run's jobs.
      fed: whether a feed sends the batches.
      shared: whether several servers share the replay.
    """

    gin_file: str
    gin_bindings: Sequence[str]
    jobs: Sequence[str]
    fed: bool = False
    shared: bool = False


def ask(question: Question, warm_parent: WarmParent | None = None) -> Effective:
    """Returns the effective bindings of a run.

    Args:
      warm_parent: forks the process, if it is ready.

    Raises:
      ValueError, ImportError: if the configuration is wrong.
      RuntimeError: if a module that the gin files import fails.
    """
    with tempfile.TemporaryDirectory() as folder, (pathlib.Path(folder) / 'log').open('w+b') as log:
        path = pathlib.Path(folder) / 'answer.json'
        command = [sys.executable, '-m', _MODULE, str(path), json.dumps(dataclasses.asdict(question))]
        fork = warm_parent.start(command, log.fileno()) if warm_parent else None
        process = fork or start_program(command, log, os.environ)
        deadline, pause = time.monotonic() + _TIMEOUT_SECS, threading.Event()
        try:
            while process.poll() is None and time.monotonic() < deadline:
                pause.wait(_POLL_SECS)
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
        answered = read_json(path)
        if answered is None:
            log.seek(0)
            lines = log.read().decode(errors='replace').splitlines()
            sys.stderr.write('\n'.join([*lines[-_LAST_LINES:], '']))
            raise UserRuntimeError(
                f'got {question.gin_file}, of which a module failed: {"".join(lines[-1:])}; need modules that can be '
                'imported; correct the one that the traceback names'
            )
    if 'error' in answered:
        raise getattr(errors, answered['error'])(answered['message'])
    return Effective(**answered)


def check(question: Question) -> Effective:
    """Returns the effective bindings of a run, by the modules in this process.
    Forgets what gin was given before.

    Raises:
      ValueError, ImportError: if the configuration is wrong.
    """
    from tflearn.config import job_config
    from tflearn.environments import registry
    from tflearn.learner.stop_conditions import StopConditions

    def check_factory(name: str, values: Mapping[str, Any]) -> None:
        registry.check_factory(name, values)
        if name.startswith('tflearn.') and name.endswith('.StopConditions') and not values.keys() - {'name'}:
            StopConditions().check()
        if question.fed:
            _check_fed(name, values)
        if question.shared:
            _check_shared(name, values)

    return job_config.check(pathlib.Path(question.gin_file), question.gin_bindings, question.jobs, check_factory)


def _check_fed(name: str, values: Mapping[str, Any]) -> None:
    """Refuses settings that a feed cannot serve. (The jobs refuse them too.)"""
    if name == f'{_EXPERIENCE}.Prioritized' or (
        name == f'{_EXPERIENCE}.Queue' and values.get('versions_ahead') is not None
    ):
        setting = 'Queue.versions_ahead' if name.endswith('Queue') else 'Prioritized replay'
        raise UserValueError(
            f'got --num_feed_workers with {setting}; need Uniform, or Queue without versions_ahead; or no feed'
        )


def _check_shared(name: str, values: Mapping[str, Any]) -> None:
    """Refuses settings with which the replay servers would draw.
    (The jobs refuse what needs the sizes of the data.)
    """
    if name == f'{_EXPERIENCE}.Uniform' and values.get('sampling') == 'server':
        raise UserValueError(
            'got several replay servers with Uniform replay, from which the servers draw; need Uniform with '
            "sampling='learner' or 'auto', Prioritized or Queue; or one replay server"
        )


def answer(question: Question) -> dict[str, Any]:
    """Returns the fields of `Effective`; or what is wrong: the 'error', a name in `core.errors`,
    and its 'message'.
    """
    try:
        return dataclasses.asdict(check(question))
    except Exception as error:
        from tflearn.config import job_config

        known = system_errors.as_user_error(error)
        if not isinstance(known, UserError):
            raise
        return {'error': type(known).__name__, 'message': job_config.plain_message(known)}


def main() -> None:
    """Answers one question: the arguments are the file for the answer, and the question as JSON."""
    path, text = sys.argv[1:]
    if os.getcwd() not in sys.path:  # where the jobs look for modules of the user
        sys.path.insert(0, os.getcwd())
    pathlib.Path(path).write_text(json.dumps(answer(Question(**json.loads(text)))), encoding='utf-8')


if __name__ == '__main__':
    main()
