"""The versions of an exported policy: `<directory>/<train step>/`, each of them whole or not there.

This is TensorFlow Serving's layout, for one writer and any number of readers on a file system with atomic renames.
What is being written or removed has a name that starts with a dot.
"""

import os
import pathlib
import re
import shutil
import time

from absl import logging

METADATA = 'metadata.json'
_KEPT = 'KEPT'
_TEMPORARY = '.exporting-'
_REMOVED = '.removing-'
_MOVED_ASIDE = '.moved_aside-'


def versions(directory: pathlib.Path) -> list[int]:
    """Returns the train steps of the whole versions, rising."""
    while True:
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
        steps = sorted(int(name) for name in names if re.fullmatch('0|[1-9][0-9]*', name))
        whole = [step for step in steps if is_whole(directory / str(step))]
        # A writer may have put a newer version in the place of all that were listed.
        if whole or all((directory / str(step)).exists() for step in steps):
            return whole


def newest_version(directory: pathlib.Path) -> int | None:
    """Returns the highest train step of the whole versions, or None when there is no version."""
    return max(versions(directory), default=None)


def is_whole(version: pathlib.Path) -> bool:
    return (version / 'saved_model.pb').is_file() and (version / METADATA).is_file()


def temporary(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Makes an empty directory in which a version can be written."""
    path = directory / f'{_TEMPORARY}{name}-{os.getpid()}'
    remove(path)
    path.mkdir(parents=True)
    return path


def publish(written: pathlib.Path, version: pathlib.Path) -> None:
    """Gives a written version its name. After that it also survives a power cut."""
    for path in [*written.rglob('*'), written]:
        _sync(path)
    os.rename(written, version)
    _sync(version.parent)


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep(version: pathlib.Path) -> bool:
    """Exempts a version from `prune`, which may run in another process. Returns False if it is gone already."""
    try:
        (version / _KEPT).touch()
    except FileNotFoundError:
        return False
    return True


def unkeep(version: pathlib.Path) -> None:
    """Lets `prune` have the version again."""
    (version / _KEPT).unlink(missing_ok=True)


def is_kept(version: pathlib.Path) -> bool:
    return (version / _KEPT).exists()


def prune(directory: pathlib.Path, keep_last: int, spare: int | None = None) -> None:
    """Removes all versions but the `keep_last` newest, that of step `spare`, and those kept by `keep`."""
    for step in versions(directory)[:-keep_last]:
        if step != spare and not is_kept(directory / str(step)):
            remove(directory / str(step))


def remove(path: pathlib.Path) -> None:
    """Removes a directory: for readers at once, from the disk after that. Spares a version that `keep` came for."""
    away = path.with_name(f'{_REMOVED}{path.name}-{os.getpid()}')
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return
    if is_kept(away):
        os.rename(away, path)
    else:
        shutil.rmtree(away, ignore_errors=True)


def remove_leftovers(directory: pathlib.Path) -> None:
    """Removes what a killed writer left behind. Only the one writer of the directory may call it."""
    for prefix in (_TEMPORARY, _REMOVED):
        for path in directory.glob(f'{prefix}*'):
            shutil.rmtree(path, ignore_errors=True)


def drop_newer_than(directory: pathlib.Path, train_step: int) -> list[int]:
    """Moves the versions beyond `train_step` aside, where no reader looks; kept ones stay.

    They were exported by training that was lost since. They are never deleted: the lost training may have been better.

    Args:
      directory: of the versions.
      train_step: that training goes on from.

    Returns:
      The train steps of the versions that were moved.
    """
    steps = [step for step in versions(directory) if step > train_step and not is_kept(directory / str(step))]
    for step in steps:
        aside = directory / f'{_MOVED_ASIDE}{step}-{time.time_ns()}'
        os.rename(directory / str(step), aside)
        logging.info('training goes on from step %d: moved the policy of step %d aside, to %s', train_step, step, aside)
    return steps
