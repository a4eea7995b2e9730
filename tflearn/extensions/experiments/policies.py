"""Several policies of one game, each of which is a run in a folder,
that train beside each other.
"""

import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TextIO

from tflearn.core import extensions
from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.extensions.experiments import runs
from tflearn.files.run_dir import PRIVATE, RunDir, local_path, write_atomically

Partner = Literal['Newest', 'League']
_MAKE = 'pettingzoo_env.make'


def run(
    root_dir: pathlib.Path,
    gin_files: Mapping[str, str],
    out: TextIO,
    gin_bindings: Sequence[str] = (),
    mode: runs.Mode = 'processes',
    partner: Partner = 'Newest',
) -> dict[str, int]:
    """Trains policies to their ends, each in a run in whose environments the others play as they are exported.

    The same call continues what was stopped. If one fails, the others are stopped. Call it from the
    main thread: it handles signals, see `runs.Runs`.

    Args:
      root_dir: a folder; the run of a policy is in a sub-folder of its name, and what it prints in
        `<name>.log`.
      gin_files: a gin file for each policy by its name: paths, or names of packaged ones; they may
        be the same. Each binds `pettingzoo_env.make.policies`.
      out: gets the lines of `runs.Runs`.
      gin_bindings: gin statements that come after each of them.
      mode: 'processes' or 'synchronous'; see `tflearn.train`.
      partner: the class of `policies.league` by which the others play.

    Returns:
      Policy -> the exit code of its run: 0 if it has reached its end, 130 if it was stopped.

    Raises:
      ValueError: if a gin file or a binding is wrong, the policies are not those of the game, or
        another process works in the folder.
    """
    root = local_path(root_dir, '--root_dir')
    bindings = {name: [*_partners(name, [*gin_files], root, partner), *gin_bindings] for name in gin_files}
    for name, gin_file in gin_files.items():
        runs.check(gin_file, bindings[name])
    codes: dict[str, int] = {}
    with runs.Runs(root, mode, out) as its:
        for name, gin_file in gin_files.items():
            its.start(name, gin_file, bindings[name])
        while its.running:
            for name, code in its.ended():
                codes[name] = code
                its.say(name, its.ending(name, code))
                if code and not its.stopping:
                    for other in its.running:
                        its.stop(other)
    return codes


def _partners(name: str, policies: Sequence[str], root: pathlib.Path, partner: Partner) -> list[str]:
    """Returns the statements for the run of a policy, whose partners are the runs of the others."""
    others = [other for other in policies if other != name]
    played = ', '.join(f'{other!r}: @{other}/league.{partner}' for other in others)
    return [
        'from tflearn.extensions.games import pettingzoo_env',
        'from tflearn.extensions.games import league',
        f'{_MAKE}.partners = {{{played}}}',
        *(f'{other}/league.{partner}.run_dir = {str(root / other)!r}' for other in others),
    ]


def read(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the gin files by policy of arguments such as 'speaker=talk.gin'."""
    found: dict[str, str] = {}
    for argument in arguments:
        name, _, gin_file = argument.partition('=')
        if not (name and gin_file) or name in found:
            raise UserValueError(f'got the argument {argument!r}; need POLICY=GIN_FILE, once for each policy')
        found[name] = gin_file
    return found


def train_policies(
    policies: Mapping[str, Mapping[str, Any]],
    *,
    root_dir: str | os.PathLike[str],
    partner: Partner = 'Newest',
    out: TextIO = sys.stderr,
    **shared: Any,
) -> dict[str, Any]:
    """Trains several policies of one game beside each other, each in a process of its own.

    Args:
      policies: arguments of `tflearn.train` for each policy by its name, such as `make_agent`.
      root_dir: a folder; the run of a policy is in a sub-folder of its name.
      partner: how the others play in a policy's environment: by their newest weights, or a league
        of their versions.
      out: gets the progress.
      **shared: arguments of `tflearn.train` for all policies; `make_environment` is a partial of
        `pettingzoo_env.make` with `policies`. As for the mode 'processes' of `tflearn.train`,
        functions and classes are those of modules.

    Returns:
      The `TrainedRun` of each policy.

    Raises:
      TypeError, ValueError: what `tflearn.train` raises, or if the policies are not those of the
        game.
      RuntimeError: if a run has failed, or was stopped.
    """
    from tflearn.api import training  # It loads TensorFlow, which the program need not.

    training.check_main_thread()
    root, texts = local_path(root_dir, 'root_dir'), {}
    for name, own in policies.items():
        arguments, evaluation = training.of_objects(root, {**shared, **own})
        given = getattr(arguments['make_environment'], 'keywords', {}).get('policies')
        extensions.load('partners').check(given, dict.fromkeys(policies.keys() - {name}))
        texts[name] = training.gin_text(arguments, evaluation)
    root.mkdir(PRIVATE, parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(root / f'{name}.gin', text.encode())
    gin_files = {name: str(root / f'{name}.gin') for name in texts}
    codes = run(root, gin_files, out, mode='synchronous', partner=partner)
    if failed := [name for name, code in codes.items() if code not in (0, runs.INTERRUPTED)]:
        raise UserRuntimeError(f'got a policy that failed: {failed[0]}; its output is in {root / failed[0]}.log')
    if any(codes.values()):
        raise KeyboardInterrupt
    return {name: training.result(RunDir(root / name)) for name in policies}
