"""The versions of an exported policy, `<directory>/<train step>/`, which are written and removed atomically.

This is TensorFlow Serving's layout, for one writer and any number of readers on a file system with atomic renames.
A version that is being written or removed has a name that starts with a dot. Two links point to versions: `latest`, and
`best` after an evaluation has set it.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from tflearn.files import digests, lock
from tflearn.files.run_dir import read_json

METADATA = 'metadata.json'
LATEST = 'latest'
BEST = 'best'

# Files that mark versions which `prune` must not remove.
KEPT = 'KEPT'
IN_USE = 'IN_USE'

_TEMPORARY = '.exporting-'
_REMOVED = '.removing-'
_MOVED_ASIDE = '.moved_aside-'
# Temporary files of another machine are leftovers if they have not changed for this long.
_ABANDONED_SECS = 24 * 3600.0


def is_complete(version: pathlib.Path) -> bool:
    return (version / 'saved_model.pb').is_file() and (version / METADATA).is_file()


def versions(directory: pathlib.Path, complete: Callable[[pathlib.Path], bool] = is_complete) -> list[int]:
    """Returns the train steps of the complete versions in ascending order."""
    while True:
        try:
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        steps = sorted(int(name) for name in names if re.fullmatch('0|[1-9][0-9]*', name))
        found = [step for step in steps if complete(directory / str(step))]
        # A writer may have replaced all that were listed by a newer version.
        if found or all((directory / str(step)).exists() for step in steps):
            return found


def newest_version(directory: pathlib.Path) -> int | None:
    """Returns the highest train step of the complete versions, or None if there is no version."""
    return max(versions(directory), default=None)


def temporary(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Makes an empty directory in which a version can be written."""
    path = directory / f'{_TEMPORARY}{name}-{_process()}'
    remove(path)
    path.mkdir(parents=True)
    return path


def record(written: pathlib.Path) -> None:
    """Writes the digests of the files of a version."""
    digests.record(written, (METADATA, KEPT, IN_USE))


def publish(written: pathlib.Path, version: pathlib.Path, recorded: bool = False) -> None:
    """Renames a written version, with the digests of its files, to its path, durably: it survives a power failure.

    Args:
      recorded: whether it has its digests already.
    """
    if not recorded:
        record(written)
    for path in [*written.rglob('*'), written]:
        _sync(path)
    os.rename(written, version)
    point_latest(version.parent)
    _sync(version.parent)


def point_latest(directory: pathlib.Path) -> None:
    """Makes the link `latest` point to the newest complete version."""
    newest = newest_version(directory)
    if newest is not None and _link_target(directory, LATEST) != newest:
        _make_link(directory, LATEST, newest)


def point_best(version: pathlib.Path) -> bool:
    """Makes the link `best` point to a version, which `prune` then keeps. Returns False if there is none any more."""
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


def add_metadata(version: pathlib.Path, **facts: Any) -> bool:
    """Adds JSON values to the metadata of a version. Returns False if the version does not exist any more."""
    written = version / f'.{METADATA}-{_process()}'
    try:
        written.write_text(json.dumps({**(read_json(version / METADATA) or {}), **facts}, indent=2) + '\n')
        _sync(written)
        os.replace(written, version / METADATA)
    except FileNotFoundError:
        return False
    return True


def best_version(directory: pathlib.Path) -> int | None:
    """Returns the train step of the best version; None if none was set, or it does not exist any more."""
    step = _link_target(directory, BEST)
    return step if step is not None and is_complete(directory / str(step)) else None


def _make_link(directory: pathlib.Path, name: str, step: int) -> None:
    temporary_link = directory / f'{_TEMPORARY}{name}-{_process()}'
    try:
        temporary_link.unlink(missing_ok=True)
        os.symlink(str(step), temporary_link)
        os.replace(temporary_link, directory / name)
    except OSError as error:  # some file systems have no links; versions are found without them
        logging.warning('could not make the link %s to %d: %s', directory / name, step, error)


def _link_target(directory: pathlib.Path, name: str) -> int | None:
    try:
        return int(os.readlink(directory / name))
    except (OSError, ValueError):
        return None


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep(version: pathlib.Path, marker: str = KEPT) -> bool:
    """Exempts a version from `prune`, which may run in another process. Returns False if it does not exist any more.

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


def is_kept(version: pathlib.Path) -> bool:
    """Returns whether a version is exempt from `prune`: it is marked, or the best one."""
    return _is_marked(version) or _link_target(version.parent, BEST) == int(version.name)


def _is_marked(path: pathlib.Path) -> bool:
    return any((path / marker).exists() for marker in (KEPT, IN_USE))


def prune(
    directory: pathlib.Path,
    keep_last: int,
    spare: int | None = None,
    complete: Callable[[pathlib.Path], bool] = is_complete,
) -> None:
    """Removes all versions except the `keep_last` newest, that of step `spare`, and those that are kept."""
    for step in versions(directory, complete)[:-keep_last]:
        if step != spare and not is_kept(directory / str(step)):
            remove(directory / str(step))


def remove(path: pathlib.Path) -> None:
    """Removes a directory, for readers atomically, unless `keep` has marked it meanwhile."""
    away = path.with_name(f'{_REMOVED}{path.name}-{_process()}')
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return
    kept = _is_marked(away) or str(_link_target(path.parent, BEST)) == path.name
    if kept and not path.name.startswith(_TEMPORARY):
        os.rename(away, path)
    else:
        shutil.rmtree(away, ignore_errors=True)


def remove_leftovers(directory: pathlib.Path) -> None:
    """Removes temporary files of a killed writer and of this process. Those of other processes that run are kept, and
    those of other machines, whose processes are not known here, until a day after their last change.

    Only the directory's writer may call it.
    """
    for prefix in (_TEMPORARY, _REMOVED):
        for path in directory.glob(f'{prefix}*'):
            if _is_in_use(path):
                continue
            if path.is_symlink():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _is_in_use(path: pathlib.Path) -> bool:
    """Returns whether another process, named at the end of the path, may still use it."""
    *_, machine, pid = path.name.split('-')
    if machine != _machine():
        return time.time() - _last_change(path) < _ABANDONED_SECS
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except PermissionError:  # it is another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _last_change(path: pathlib.Path) -> float:
    """Returns when anything in `path` was last changed [unix s]; 0 if it does not exist any more."""
    files = [path]
    if not path.is_symlink():
        files += [pathlib.Path(folder, name) for folder, *names in os.walk(path) for name in itertools.chain(*names)]
    newest = 0.0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, file.lstat().st_mtime)
    return newest


def _process() -> str:
    """Returns a name for this process that is unique, also among machines."""
    return f'{_machine()}-{os.getpid()}'


@functools.cache
def _machine() -> str:
    """Returns a name for the namespace of the process's number: a machine since its start, or a container."""
    name = lock.machine() or socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def drop_newer_than(
    directory: pathlib.Path, train_step: int, complete: Callable[[pathlib.Path], bool] = is_complete
) -> list[int]:
    """Moves the versions newer than `train_step` aside, where no reader looks; those that are `KEPT` stay.

    They were exported by training that is lost. They are never deleted, since the lost training may have been better.

    Args:
      train_step: the train step from which training continues.
    """
    newer = [step for step in versions(directory, complete) if step > train_step]
    steps = [step for step in newer if not (directory / str(step) / KEPT).exists()]
    if _link_target(directory, BEST) in steps:
        (directory / BEST).unlink(missing_ok=True)
    for step in steps:
        aside = directory / f'{_MOVED_ASIDE}{step}-{time.time_ns()}'
        os.rename(directory / str(step), aside)
        logging.info('training continues at step %d: moved the policy of step %d aside, to %s', train_step, step, aside)
    point_latest(directory)
    return steps
