"""The versions of an exported policy, `<directory>/<train step>/`,
which are written and removed atomically.

This is TensorFlow Serving's layout, for one writer and any number of readers on a file system with
atomic renames. A version that is being written or removed has a name that starts with a dot. Two
links point to versions: `latest`, and `best` after an evaluation has set it.
"""

import os
import pathlib
import time
from collections.abc import Sequence

from absl import logging

from tflearn.core.errors import UserFileNotFoundError
from tflearn.files import digests, numbered
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import RunDir, read_json

METADATA = 'metadata.json'
# A key of the metadata: the numbers that stand for missing ones, by the names of the inputs' parts.
MISSING = 'missing'
# A key of the metadata: the values of each category, in the order of their numbers.
VOCABULARIES = 'vocabularies'
STATES = 'states.json'  # of `policies.states`
LATEST = 'latest'
BEST = 'best'

# Files that mark versions which `prune` must not remove.
KEPT = 'KEPT'
IN_USE = 'IN_USE'
PROMOTED = 'PROMOTED'  # by `policies.states`
MARKERS = (KEPT, IN_USE, PROMOTED)

_MOVED_ASIDE = '.moved_aside-'
_MODEL = 'saved_model.pb'
_NEEDED = (_MODEL, METADATA)
_TRIGGERS = ('policy', 'collect_policy', 'greedy_policy')  # what TF-Agents' trigger calls its SavedModels


def is_complete(version: pathlib.Path) -> bool:
    return all((version / name).is_file() for name in _NEEDED)


def versions(directory: pathlib.Path, needs: Sequence[str] = _NEEDED) -> list[int]:
    """Returns the train steps of the complete versions, those with all that they need,
    in ascending order.
    """
    return Numbered(directory, needs=needs).numbers()


def newest_version(directory: pathlib.Path) -> int | None:
    """Returns the highest train step of the complete versions, or None if there is no version."""
    return max(versions(directory), default=None)


def stable_version(directory: pathlib.Path) -> int | None:
    """Returns the version that answers requests by `policies.states`;
    None if no version has a state, and the newest one answers.
    """
    return (read_json(directory / STATES) or {}).get('stable')


def find(path: pathlib.Path, train_step: int | None = None) -> pathlib.Path:
    """Returns the directory of a policy's SavedModel.

    Args:
      path: that directory, or a directory of exported versions, or a run directory (or its copied
        `policies`), of which the greedy policy is taken.
      train_step: which of the versions; None takes the one that `tflearn promote` has made stable,
        else the newest, or of a run the best by evaluation if there is one.

    Raises:
      FileNotFoundError: if there is none, or only the untrained one of TF-Agents'
        `PolicySavedModelTrigger`.
    """
    greedy = RunDir(path).greedy_policy
    directory = next((each for each in (greedy, path / greedy.name) if each.is_dir()), path)
    version = _chosen(directory, directory != path) if train_step is None else directory / str(train_step)
    while not (version / _MODEL).exists():
        newer = version if train_step is not None else _chosen(directory, directory != path)
        if newer == version:
            found = ', '.join(map(str, versions(directory)))
            raise UserFileNotFoundError(
                f'got no policy at {version}{"" if path.exists() else ", which does not exist"}; need the directory of '
                'a SavedModel, of exported versions, or of a run'
                f'{f"; there are the train steps {found}" if found else ""}'
            )
        version = newer  # the other one was pruned just then
    _check_trained(version)
    return version


def _check_trained(model: pathlib.Path) -> None:
    """Raises FileNotFoundError if TF-Agents' `PolicySavedModelTrigger` wrote a SavedModel:
    it does so before it trains, and later writes the variables alone, to a directory beside the model.
    """
    newest = max(model.parent.glob('checkpoints/policy_checkpoint_*'), default=None)
    if newest is not None and model.name in _TRIGGERS:
        call = f'materialize_saved_model({str(model)!r}, {str(newest)!r}, {f"{model}_trained"!r})'
        raise UserFileNotFoundError(
            f'got {model}, which TF-Agents wrote before it trained; need its newest weights, {newest}, as well; write '
            f'both as one SavedModel by `from tf_agents.policies import policy_loader; policy_loader.{call}`, and give '
            'that one'
        )


def _chosen(directory: pathlib.Path, of_run: bool) -> pathlib.Path:
    """Returns the version of a directory of which none is named:
    what serves, a run's best, or else the newest.
    """
    if (directory / _MODEL).exists():
        return directory
    finders = (stable_version, best_version, newest_version) if of_run else (stable_version, newest_version)
    steps = (find_step(directory) for find_step in finders)
    return next((directory / str(step) for step in steps if step is not None), directory)


def record(written: pathlib.Path) -> None:
    """Writes the digests of the files of a version."""
    digests.record(written, (METADATA, *MARKERS))


def publish(written: pathlib.Path, version: pathlib.Path, recorded: bool = False) -> None:
    """Renames a written version, with digests, to its path, durably: it survives a power failure.

    Args:
      recorded: whether it has its digests already.
    """
    if not recorded:
        record(written)
    numbered.put(written, version)
    point_latest(version.parent)


def point_latest(directory: pathlib.Path) -> None:
    """Makes the link `latest` point to the newest complete version."""
    newest = newest_version(directory)
    if newest is not None and _link_target(directory, LATEST) != newest:
        _make_link(directory, LATEST, newest)


def point_best(version: pathlib.Path) -> bool:
    """Makes the link `best` point to a version, which `prune` then keeps.
    Returns False if there is none any more.
    """
    before = _link_target(version.parent, BEST)
    if not is_complete(version):
        return False
    _make_link(version.parent, BEST, int(version.name))
    if is_complete(version):
        return True
    if before is None:  # it was pruned just then
        (version.parent / BEST).unlink(missing_ok=True)
    else:
        _make_link(version.parent, BEST, before)
    return False


def best_version(directory: pathlib.Path) -> int | None:
    """Returns the train step of the best version;
    None if none was set, or it does not exist any more.
    """
    step = _link_target(directory, BEST)
    return step if step is not None and is_complete(directory / str(step)) else None


def _make_link(directory: pathlib.Path, name: str, step: int) -> None:
    try:
        numbered.put_link(directory / name, str(step))
    except OSError as error:  # some file systems have no links; versions are found without them
        logging.warning('could not make the link %s to %d: %s', directory / name, step, error)


def _link_target(directory: pathlib.Path, name: str) -> int | None:
    try:
        return int(os.readlink(directory / name))
    except (OSError, ValueError):
        return None


def keep(version: pathlib.Path, marker: str = KEPT) -> bool:
    """Exempts a version from `prune`, which may run in another process.
    Returns False if it does not exist any more.

    `marker` is the file that marks it: `KEPT` permanently, `IN_USE` for a while.
    """
    try:
        (version / marker).touch()
    except FileNotFoundError:
        return False
    return True


def unkeep(version: pathlib.Path, marker: str = KEPT) -> None:
    """Removes a marker, so that `prune` may remove the version unless there is another one."""
    (version / marker).unlink(missing_ok=True)


def _is_kept(version: pathlib.Path, at: pathlib.Path) -> bool:
    """Returns whether a version is exempt from `prune`: it is the best one, or marked, wherever it is now."""
    return version.name == str(_link_target(version.parent, BEST)) or any((at / name).exists() for name in MARKERS)


def prune(directory: pathlib.Path, keep_last: int, spare: int | None = None, needs: Sequence[str] = _NEEDED) -> None:
    """Removes all versions except the `keep_last` newest, that of step `spare`,
    and those that are kept.
    """
    for path in (directory / str(step) for step in versions(directory, needs)[:-keep_last] if step != spare):
        if not _is_kept(path, path):
            remove(path)


def remove(version: pathlib.Path) -> None:
    """Removes a version, for readers atomically, unless `keep` has marked it meanwhile."""
    numbered.remove(version, lambda away: _is_kept(version, away))


def drop_newer_than(directory: pathlib.Path, train_step: int, needs: Sequence[str] = _NEEDED) -> list[int]:
    """Moves the versions newer than `train_step` aside, where no reader looks,
    unless they are `KEPT` or `PROMOTED`.

    They were exported by training that is lost. They are never deleted, since the lost training may
    have been better.

    Args:
      train_step: the train step from which training continues.
    """
    newer = [step for step in versions(directory, needs) if step > train_step]
    steps = [step for step in newer if not any((directory / str(step) / name).exists() for name in (KEPT, PROMOTED))]
    if _link_target(directory, BEST) in steps:
        (directory / BEST).unlink(missing_ok=True)
    for step in steps:
        aside = directory / f'{_MOVED_ASIDE}{step}-{time.time_ns()}'
        os.rename(directory / str(step), aside)
        logging.info('training continues at step %d: moved the policy of step %d aside, to %s', train_step, step, aside)
    point_latest(directory)
    return steps
