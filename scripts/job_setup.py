"""The programs of the jobs, from the command line to the exit code."""

import functools
import hashlib
import importlib
import pathlib
import re
import shlex
import sys
import threading
from collections.abc import Callable, Sequence

from absl import flags, logging

from tflearn.config import files, going_on, job_config, reader
from tflearn.core import preflight, waiting
from tflearn.core.verbs import values_of
from tflearn.files.run_dir import RunDir, opened_run_dir, write_atomically
from tflearn.launch.code_revision import code_revision, code_snapshot

from . import job_flags, job_process

# The fields of a `Run` that are flags; only a replay server has the first one.
_OF_RUN = {'replay_address', 'connect_timeout_secs', 'stop_timeout_secs'}


def main(
    job: str,
    description: str | None,
    name_flag: str | None = None,
    groups: Sequence[str] = (),
    bindings: Callable[[], Sequence[str]] = tuple,
    shared: Callable[[], job_config.SharedArguments] = dict,
    program: str = '',
    module: str | None = None,
) -> None:
    """Runs the program of a job that a gin file configures; does not return but for --help.

    A text that the function tflearn.jobs.<module>.<job> returns is printed.

    Args:
      job: the job's name.
      description: the first text of --help.
      name_flag: the flag with the job's name; None if a run has only one such job.
      groups: the groups of the flags of this job, see `job_flags.define`.
      bindings: returns gin statements that those flags make; they come last.
      shared: returns the arguments that other jobs' bindings set (`job_config.configure`).
      program: the program's name; by default tflearn-<job>.
      module: None is the job's name, of a job of the run itself.
    """

    program = program or f'tflearn-{job.replace("_", "-")}'

    def is_dry() -> bool:
        return 'dry_run' in flags.FLAGS and bool(flags.FLAGS.dry_run)

    def run(stop: threading.Event) -> None:
        if is_dry():
            run_in(RunDir('/'), stop)  # nothing is read there, or written
            return
        shard = flags.FLAGS.shard if 'shard' in flags.FLAGS else 0
        status_name = f'{job}_{shard}' if shard else name
        with opened_run_dir(flags.FLAGS.root_dir, job, status_name) as run_dir:
            run_in(run_dir, stop)

    def run_in(run_dir: RunDir, stop: threading.Event) -> None:
        # What can be checked within a second comes before TensorFlow, which takes several.
        if not is_dry():
            run_dir.make(flags.FLAGS.share_with_group)
        gin_file = files.resolve(flags.FLAGS.gin_file)
        reader.read(gin_file, flags.FLAGS.gin_bindings)
        with waiting.may_exit(stop, lambda: None):  # nothing was begun
            preflight.import_quietly('tensorflow', 'gym')
            from tflearn.core.access import Access
            from tflearn.jobs.run import Hooks, Run

            function = getattr(importlib.import_module(f'tflearn.jobs.{module or job}'), job)
        hooks = Hooks(lambda: _save(run_dir, configured), lambda: _texts(configured, program))
        given = values_of(flags.FLAGS, *_OF_RUN.intersection(flags.FLAGS))
        this = Run(run_dir, stop, Access(*job_flags.coordinator()), name, hooks=hooks, **given)
        statements = [*flags.FLAGS.gin_bindings, *bindings()]
        configured: job_config.ConfiguredJob = job_config.configure(
            function, {'run': this}, gin_file, statements, shared()
        )
        was_done = module is None and _go_on(run_dir, configured, f'tflearn.jobs.{job}')
        if isinstance(result := configured.run(), str):
            print(result, flush=True)
        if not stop.is_set() and not was_done and (unused := _unused(configured)):
            logging.info('bindings that had no effect in this job: %s', ', '.join(unused))

    preflight.import_from_here()
    job_flags.define(*job_flags.JOB, *groups)
    if name_flag:
        is_word = lambda name: re.fullmatch(r'[\w-]+', name)  # noqa: E731
        flags.register_validator(name_flag, is_word, 'need letters, digits, _ and -, and nothing else')
    # What acts in a run's environment, and is no job of the run, can take its gin file.
    if job_flags.read(program, description, functools.partial(job_flags.check, module is not None)):
        name = str(flags.FLAGS[name_flag].value) if name_flag else job
        job_process.run(program, name, run, flags.FLAGS.stop_timeout_secs, flags.FLAGS.profile_python)


def plain_main(
    program: str,
    description: str | None,
    run: Callable[[threading.Event], None],
    example: str,
    check_flags: Callable[[], None] = lambda: None,
    groups: Sequence[str] = (),
    done_by: int = 0,
) -> None:
    """Runs the program of a job that has only flags, like `main`.

    Args:
      program: the program's name, which ends with that of the job.
      description: the first text of --help.
      run: runs the job with its flags, until it is done, or until soon after its argument is set.
      example: a flag with a value, for --help.
      check_flags: raises ValueError for values that exclude each other.
      groups: the groups of its flags, see `job_flags.define`.
      done_by: the signal that ends the job with the exit code 0, see `job_process.run`.
    """
    job_flags.define(*job_flags.PROCESS, *groups)
    if job_flags.read(program, description, check_flags, example):
        job = re.split('[ -]', program)[-1]
        job_process.run(program, job, run, flags.FLAGS.stop_timeout_secs, flags.FLAGS.profile_python, done_by)


def _go_on(run_dir: RunDir, configured: job_config.ConfiguredJob, job: str) -> bool:
    """Reopens a finished run if its end has moved, and logs what changed. Returns whether it is finished."""
    if run_dir.done.exists() or run_dir.train_result.exists():
        for line in going_on.begin(run_dir, configured.effective, job):
            logging.info('%s', line)
    return run_dir.done.exists()


def _unused(configured: job_config.ConfiguredJob) -> list[str]:
    """Returns the bindings that had no effect, but those of packaged files, which nobody has to correct."""
    return [each for each in configured.inoperative() if f'({files.folder()}/' not in each]


def _save(run_dir: RunDir, configured: job_config.ConfiguredJob) -> None:
    """Saves the configuration, and the code's differences from its revision if that is wanted."""
    job_config.save(run_dir, configured)
    if flags.FLAGS.code_snapshot:
        write_atomically(run_dir.code_snapshot, code_snapshot([pathlib.Path.cwd()]) + '\n')


def _texts(configured: job_config.ConfiguredJob, program: str) -> dict[str, str]:
    """Returns the texts for TensorBoard: configuration, code revision, command line."""
    return {
        **configured.texts(),
        'run/config_hash': hashlib.sha256(configured.text.encode()).hexdigest()[:16],
        'run/code_revision': code_revision(),
        'run/command_line': f'    {program} {shlex.join(sys.argv[1:])}',
        **({'run/code_snapshot': code_snapshot([pathlib.Path.cwd()])} if flags.FLAGS.code_snapshot else {}),
    }
