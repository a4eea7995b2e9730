"""What all job programs share, from the command line to the exit code: `main` is a program without its job."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import shlex
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tflearn.errors import UserError, UserImportError

from . import preflight  # The others are imported after its check: packages that they need may be missing.

if TYPE_CHECKING:
    from tflearn.config import job_config
    from tflearn.run_dir import RunDir


@dataclasses.dataclass(frozen=True)
class Setup:
    """The settings of a job's program from its command line.

    Attributes:
      run_dir: the run's directory, which exists and is writable.
      replay_address: 'host:port' of the replay server.
    """

    name: str
    run_dir: RunDir
    gin_file: pathlib.Path
    gin_bindings: list[str]
    replay_address: str
    connect_timeout_secs: float
    stop: threading.Event

    def configure(
        self, job: Callable[..., None], takes: job_config.Taken | None = None, **arguments: Any
    ) -> job_config.ConfiguredJob:
        """Binds the job's arguments that the program does not give from the run's gin file.

        Args:
          takes: see `job_config.configure`.

        Raises:
          ValueError: if the gin file or a binding is wrong.
        """
        from tflearn.config import job_config

        return job_config.configure(job, arguments, self.gin_file, self.gin_bindings, takes)

    def describe(self, configured: job_config.ConfiguredJob) -> dict[str, str]:
        """Returns the texts for TensorBoard: configuration, code revision, command line."""
        from tflearn.launch.code_revision import code_revision

        return {
            **configured.texts(),
            'run/config_hash': hashlib.sha256(configured.text.encode()).hexdigest()[:16],
            'run/code_revision': code_revision(),
            'run/command_line': f'    {shlex.join(sys.argv)}',
        }

    def run(self, configured: job_config.ConfiguredJob) -> None:
        """Runs the job, then logs which bindings had no effect in it."""
        from absl import logging

        was_done = self.run_dir.done.exists()
        configured.run()
        if not self.stop.is_set() and not was_done and (unused := configured.inoperative()):
            logging.info('bindings that had no effect in this job: %s', ', '.join(unused))


def main(
    job: str,
    description: str | None,
    run: Callable[[Setup], None],
    name_flag: str | None = None,
    define_flags: Callable[[], None] = lambda: None,
) -> None:
    """Runs a job's program; does not return but for --help.

    Args:
      job: the job's name; its program is tflearn-<job>.
      description: the first text of --help.
      run: configures the job and runs it until it is done, or until soon after `Setup.stop` is set.
      name_flag: the flag with the job's name; None if a run has only one such job.
    """
    program = f'tflearn-{job.replace("_", "-")}'
    try:
        preflight.check()
        preflight.import_from_here()
    except UserImportError as error:
        print(f'{program}: error: {error}', file=sys.stderr)
        sys.exit(2)
    from absl import flags

    from . import job_flags, job_process

    job_flags.define((name_flag, f'{job}_0') if name_flag else None)
    define_flags()
    try:
        job_flags.parse(sys.argv)
    except UserError as error:
        sys.exit(job_process.report(program, error))
    if flags.FLAGS.help or flags.FLAGS.helpfull:
        print(job_flags.help_text(program, description or '', full=flags.FLAGS.helpfull))
        return
    name = str(flags.FLAGS[name_flag].value) if name_flag else job
    job_process.set_up_logging(name)
    job_process.run(program, lambda stop: run(_setup(name, stop)), flags.FLAGS.stop_timeout_secs)


def _setup(name: str, stop: threading.Event) -> Setup:
    """Checks what can be checked within a second, then imports TensorFlow, which takes several."""
    from absl import flags

    from tflearn.config import files, reader
    from tflearn.run_dir import RunDir

    run_dir = RunDir(flags.FLAGS.root_dir)
    run_dir.make()
    gin_file = files.resolve(flags.FLAGS.gin_file)
    reader.read(gin_file, flags.FLAGS.gin_bindings)
    preflight.import_quietly('tensorflow', 'gym')
    return Setup(
        name=name,
        run_dir=run_dir,
        gin_file=gin_file,
        gin_bindings=flags.FLAGS.gin_bindings,
        replay_address=flags.FLAGS.replay_address,
        connect_timeout_secs=flags.FLAGS.connect_timeout_secs,
        stop=stop,
    )
