"""StoreCopy: keeps the local copy of a run and its objects in a store the same,
in the directions of a role.

Two threads work off the job's own: one for small files (status, requests, summaries), each second;
one for artifacts (checkpoints, policies), so that a large upload does not hold back the status. A
pass that fails is tried again later; what comes later in the order is never written before what
comes earlier.
"""

import contextlib
import os
import pathlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import logging

from tflearn.core import background
from tflearn.core.errors import UserRuntimeError
from tflearn.extensions.stores import store_layout
from tflearn.extensions.stores.objects import Objects, Version
from tflearn.extensions.stores.store_layout import FileAccess
from tflearn.files import digests, numbered
from tflearn.files.lock import Store
from tflearn.files.run_dir import write_atomically

_POLL_SECS = 2.0
_VERSIONS = 'policies'  # the folder that only artifacts are in
_MAX_PAUSE_SECS = 30.0
_GROWING_SECS, _GROWING_BYTES_PER_SEC = 30.0, 1e6

# A folder is where a file should be, or the other way round.
_OCCUPIED = (IsADirectoryError, NotADirectoryError, FileExistsError)

# What identifies a file's content here: changed files have another one.
_Local = tuple[int, ...]


class StoreCopy(Store):
    """The local copy of a run in `root`, of one process with one role;
    and the store that it is a copy of.
    """

    check_secs = 6.0  # longer than between two renewals of a lock, which look at it

    def __init__(self, objects: Objects, root: pathlib.Path, role: FileAccess):
        """Copies nothing yet."""
        self.objects, self.root, self._role = objects, root, role
        self._failing: set[str] = set()  # the threads whose newest pass failed
        self._small, self._large = threading.RLock(), threading.RLock()
        # As they were when they were last the same as in the store.
        self._files: dict[str, _Local] = {}
        self._sets: dict[str, Mapping[str, _Local]] = {}
        self._versions: dict[str, Version] = {}  # of the objects, then
        self._uploaded_at: dict[str, float] = {}
        self._owner_check: Callable[[], None] | None = None if role.owns else lambda: None
        self._closed = threading.Event()
        self._threads: list[background.Thread] = []

    def restore(self) -> None:
        """Copies what the role restores and follows, of a role that owns no sets all of it.
        Raises OSError.
        """
        with self._large, self._small:
            self._restore(sets=not self._role.owns)

    def _restore(self, sets: bool) -> Mapping[str, Version]:
        """Copies what the role restores; returns the objects that there are."""
        # What was there before an end is in the second one.
        before, there = self.objects.list(), self.objects.list()
        if sets:
            self._take_sets(there, self._role.is_restored)
            self._take_links({name: each for name, each in there.items() if self._role.is_restored(name)})
        for name, version in before.items():
            alone = store_layout.set_of(name) is None and store_layout.marked(name) is None
            if alone and not store_layout.is_link(name) and self._role.is_restored(name):
                self._take(name, version)
        return there

    def names(self, directory: pathlib.Path) -> list[str]:
        """See `Store`."""
        return [name.rpartition('/')[2] for name in self.objects.list(self._name(directory), recursive=False)]

    def read(self, path: pathlib.Path) -> bytes:
        """See `Store`."""
        return self.objects.read(self._name(path))

    def size(self, path: pathlib.Path) -> int:
        """See `Store`."""
        return self.objects.size(self._name(path))

    def write(self, path: pathlib.Path, content: bytes) -> None:
        """See `Store`; the object is whole."""
        self.objects.write(self._name(path), content)

    def create(self, path: pathlib.Path, content: bytes) -> bool:
        """See `Store` and `Objects.create`."""
        return self.objects.create(self._name(path), content)

    def delete(self, path: pathlib.Path) -> None:
        """See `Store`."""
        self.objects.delete(self._name(path))

    def refresh(self) -> None:
        """See `Store`."""
        self.pass_large()
        self.pass_small()

    def _name(self, path: pathlib.Path) -> str:
        return path.relative_to(self.root).as_posix()

    def begin(self, check: Callable[[], None]) -> None:
        """Restores the sets that this process owns from now on, and begins to write them.
        Raises OSError.
        """
        with self._large, self._small:
            self._remove_leftovers(self._restore(sets=True))
            self._owner_check = check

    def end(self) -> None:
        """Writes the last sets, and no more after that. Raises OSError."""
        with self._large:
            if self._owner_check is None:
                return
            try:
                self.write_all()
            finally:
                if self._role.owns:
                    self._owner_check = None

    @property
    def answers(self) -> bool:  # type: ignore[override]
        """Whether the newest passes of both threads succeeded."""
        return not self._failing

    def start(self) -> None:
        """Starts the threads."""
        for work in (self.pass_small, self.pass_large):
            thread = background.Thread(target=self._repeat, args=(work,), name='store_copy')
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Ends the threads."""
        self._closed.set()
        for thread in self._threads:
            thread.join(_MAX_PAUSE_SECS)

    def write_all(self) -> None:
        """Writes everything that was written here before this call. Raises OSError."""
        self.upload()
        with self._small:
            self._write_small(all_of_it=True)

    def upload(self) -> None:
        """Writes all sets that were written here before this call, and what refers to them.
        Raises OSError.
        """
        with self._large:
            self._write_large()

    def pass_small(self) -> None:
        """Writes and reads what is valid by itself, once. Raises OSError."""
        with self._small:
            self._write_small()
            folders = [folder for folder in self._role.folders if folder != _VERSIONS]
            there = self._valid_alone(self._list(folders))
            there = {name: each for name, each in there.items() if self._is_small(name)}
            for name, version in there.items():
                self._take(name, version)
            self._drop(there, self._is_small)

    def pass_large(self) -> None:
        """Writes and reads sets, links and ends, once. Raises OSError."""
        with self._large:
            self._write_large()
            ends = self._valid_alone(self._list(self._role.folders))
            there = self._list(self._role.folders)
            self._take_sets(there, self._role.is_followed)
            followed = {name: each for name, each in there.items() if self._role.is_followed(name)}
            self._take_links(followed)
            for name, version in ends.items():
                if store_layout.is_end(name):
                    self._take(name, version)
            self._drop(followed, lambda name: store_layout.is_end(name) or store_layout.is_link(name))
            self._drop_sets(set(store_layout.whole_sets(there)))

    def _repeat(self, work: Callable[[], None]) -> None:
        pause, failure = _POLL_SECS, ''
        while not self._closed.wait(pause):
            try:
                work()
                if failure:
                    logging.info('%s answers again', self.objects.url)
                pause, failure = _POLL_SECS, ''
                self._failing.discard(work.__name__)
            except UserRuntimeError as error:  # another process owns it; the job finds out itself
                logging.warning('wrote nothing to %s: %s', self.objects.url, error)
                self._owner_check = None
            except Exception as error:  # without this thread others would take the job for silent
                if str(error) != failure:
                    logging.warning('%s: %s; trying again', type(error).__name__, error)
                failure = str(error)
                self._failing.add(work.__name__)
                pause = min(2 * pause, _MAX_PAUSE_SECS) * random.uniform(0.75, 1.0)

    def _write_small(self, all_of_it: bool = False) -> None:
        files = self._local(self._is_small)
        for name, found in files.items():
            if self._files.get(name) != _identity(found) and (all_of_it or self._is_due(name, found)):
                self._put(name)
        self._delete_gone(files, self._is_small)

    def _is_small(self, name: str) -> bool:
        return not (store_layout.set_of(name) or store_layout.is_link(name) or store_layout.is_end(name))

    def _local(self, kind: Callable[[str], bool]) -> dict[str, os.stat_result]:
        """Returns the files here that this process writes, of one kind."""
        found = store_layout.local_files(self.root)
        return {name: each for name, each in found.items() if kind(name) and self._role.is_written(name)}

    def _is_due(self, name: str, found: os.stat_result) -> bool:
        """Returns whether to write a changed file now: those that grow are written seldom."""
        pause = max(_GROWING_SECS, found.st_size / _GROWING_BYTES_PER_SEC) if store_layout.is_growing(name) else 0.0
        return time.monotonic() - self._uploaded_at.get(name, -pause) >= pause

    def _write_large(self) -> None:
        if self._owner_check is None:
            return
        self._owner_check()
        # What refers to others is looked at first: then they are there when they are looked at.
        ends, links = self._local(store_layout.is_end), self._local(store_layout.is_link)
        files = store_layout.local_files(self.root)
        self._write_sets(files, links)
        self._write_each(links)
        if any(self._files.get(name) != _identity(each) for name, each in ends.items()):
            with self._small:
                self._write_small(all_of_it=True)
            self._write_each(ends)
        self._delete_gone(ends, store_layout.is_end)
        self._delete_gone(links, store_layout.is_link)

    def _write_each(self, files: Mapping[str, os.stat_result]) -> None:
        for name, found in files.items():
            if self._files.get(name) != _identity(found):
                self._put(name)

    def _write_sets(self, files: Mapping[str, os.stat_result], links: Iterable[str]) -> None:
        sets = _by_set(files)
        for key, members in sets.items():
            if self._role.is_written(f'{key}/') and self._sets.get(key) != members:
                self._write_set(key, files)
        if not self._role.owns:
            self._write_referred(links, files)
        for key in [key for key in self._sets if key not in sets and self._role.is_written(f'{key}/')]:
            self._delete_set(key)

    def _write_referred(self, links: Iterable[str], files: Mapping[str, os.stat_result]) -> None:
        """Writes versions again that were deleted by their owner while this process evaluated and chose them."""
        for name in links:
            path = self.root / name
            if not name.endswith(('/best', '/KEPT')) or self._files.get(name) == _identity(os.lstat(path)):
                continue
            key = f'{name.rpartition("/")[0]}/{os.readlink(path)}' if path.is_symlink() else store_layout.set_of(name)
            # Its owner may delete what looks incomplete to it.
            while key in self._sets and not self._is_whole(key):
                self._write_set(key, files)

    def _is_whole(self, key: str) -> bool:
        there, marker = self.objects.list(key.rpartition('/')[0]), store_layout.marker(key)
        with contextlib.suppress(store_layout.BadObject):
            return marker in there and all(
                name in there for name in store_layout.decode(self.objects.read(marker), key)
            )
        return False

    def _write_set(self, key: str, files: Mapping[str, os.stat_result]) -> None:
        """Writes a set; if it is changed or deleted meanwhile, it has no marker,
        and the next pass begins again.
        """
        names = [name for name in files if store_layout.set_of(name) == key and not name.endswith(('/KEPT', '/IN_USE'))]
        members, marker = _by_set({name: files[name] for name in names})[key], store_layout.marker(key)
        self.objects.delete(marker)
        self._sets[key] = {}
        with contextlib.suppress(FileNotFoundError):
            described = store_layout.describe(self.root, names)
            for name in store_layout.in_order(names):
                self.objects.upload(self.root / name, name)
            if members == {name: _identity(os.lstat(self.root / name)) for name in members}:
                self.objects.write(marker, store_layout.encode(described))
                self._sets[key] = members

    def _delete_set(self, key: str) -> None:
        self.objects.delete(store_layout.marker(key))
        for name in self.objects.list(key.rpartition('/')[0]):
            if store_layout.set_of(name) == key:
                self.objects.delete(name)
                self._forget(name)
        del self._sets[key]

    def _remove_leftovers(self, there: Mapping[str, Version]) -> None:
        """Deletes the objects of sets that their writer did not complete."""
        whole = set(store_layout.whole_sets(there))
        for name in there:
            key = store_layout.set_of(name)
            if key is not None and key not in whole and self._role.is_written(f'{key}/'):
                self.objects.delete(name)

    def _put(self, name: str) -> None:
        path = self.root / name
        try:
            found = os.lstat(path)
            if path.is_symlink() and store_layout.is_link(name):
                self.objects.write(name, os.readlink(path).encode())
            elif name.endswith('.jsonl'):  # only lines that are complete
                self.objects.write(name, b''.join(path.read_bytes().rpartition(b'\n')[:2]))
            else:
                self.objects.upload(path, name)
        except FileNotFoundError:  # deleted meanwhile
            return
        self._files[name], self._uploaded_at[name] = _identity(found), time.monotonic()
        self._versions.pop(name, None)

    def _delete_gone(self, files: Mapping[str, Any], kind: Callable[[str], bool]) -> None:
        for name in [name for name in self._files if kind(name) and name not in files and self._role.is_written(name)]:
            self.objects.delete(name)
            self._forget(name)

    def _list(self, folders: Iterable[str]) -> dict[str, Version]:
        found = dict[str, Version]()
        for folder in folders:
            found |= self.objects.list(folder, recursive=bool(folder))
        return found

    def _valid_alone(self, there: Mapping[str, Version]) -> dict[str, Version]:
        """Returns the objects that this role follows, without those of sets."""
        names = [name for name in there if store_layout.set_of(name) is None and store_layout.marked(name) is None]
        return {name: there[name] for name in names if self._role.is_followed(name)}

    def _take(self, name: str, version: Version) -> None:
        """Copies an object that is valid by itself, unless it is here already."""
        path = self.root / name
        if self._versions.get(name) == version:
            return
        try:
            content = self.objects.read(name)
        except FileNotFoundError:
            return
        try:
            self._make_folder(path)
            if store_layout.is_link(name) and name.endswith(('/best', '/latest')):
                if not content.isdigit():  # it would lead elsewhere
                    raise store_layout.BadObject(f'got a link to {content[:80]!r}; need the number of a version')
                numbered.put_link(path, content.decode())
            else:
                write_atomically(path, content)
        except (store_layout.BadObject, *_OCCUPIED) as error:
            self._pass_over(name, version, error)
        else:
            self._versions[name], self._files[name] = version, _identity(os.lstat(path))

    def _pass_over(self, name: str, version: Version, error: Exception) -> None:
        """Leaves an object out until it is another one."""
        logging.warning('passed over the object %s/%s: %s', self.objects.url, name, error)
        self._versions[name] = version

    def _make_folder(self, path: pathlib.Path) -> None:
        """Makes the folder of a file. Raises BadObject if a link leads elsewhere."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.resolve() != self.root.resolve() / path.parent.relative_to(self.root):
            raise store_layout.BadObject(f'got a link in {path.parent}; need folders')

    def _take_links(self, there: Mapping[str, Version]) -> None:
        for name, version in there.items():
            if not store_layout.is_link(name):
                continue
            key = store_layout.set_of(name)
            if key is None or (self.root / key).is_dir():
                self._take(name, version)

    def _take_sets(self, there: Mapping[str, Version], wanted: Callable[[str], bool]) -> None:
        for key in sorted(store_layout.whole_sets(there), key=_by_number, reverse=True):
            marker = store_layout.marker(key)
            if not wanted(f'{key}/') or self._versions.get(marker) == there[marker]:
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                try:
                    if self._take_set(key, store_layout.decode(self.objects.read(marker), key)):
                        self._versions[marker] = there[marker]
                except (store_layout.BadObject, *_OCCUPIED) as error:
                    self._pass_over(marker, there[marker], error)

    def _take_set(self, key: str, described: store_layout.Described) -> bool:
        """Copies a set, checks it and puts it into place;
        returns False if it is not what its marker lists.
        """
        waiting = self.root / '.arriving' / key
        shutil.rmtree(waiting, ignore_errors=True)
        self._make_folder(self.root / key)
        for name, (size, digest) in described.items():
            self.objects.download(name, waiting / name, size)
            if digest is not None and digests.file_digest(waiting / name) != digest:
                logging.warning('skipped %s/%s: %s is not what its marker lists', self.objects.url, key, name)
                return False
        if (self.root / key).is_dir():  # another one of that number
            shutil.rmtree(waiting.parent / '.replaced', ignore_errors=True)
            os.rename(self.root / key, waiting.parent / '.replaced')
        if next(iter(described)).startswith(f'{key}/'):
            os.rename(waiting / key, self.root / key)
        else:
            for name in store_layout.in_order(list(described)):
                os.replace(waiting / name, self.root / name)
        shutil.rmtree(self.root / '.arriving', ignore_errors=True)
        found = {name: os.lstat(self.root / name) for name in described}
        self._sets[key] = _by_set(found)[key]
        self._files |= {name: _identity(each) for name, each in found.items() if store_layout.is_change(name)}
        return True

    def _drop(self, there: Mapping[str, Version], kind: Callable[[str], bool]) -> None:
        """Deletes files here whose objects were deleted."""
        for name in [name for name in self._versions if kind(name) and name not in there]:
            if self._role.is_followed(name) and store_layout.marked(name) is None:
                if name in self._files:  # not one that was passed over
                    (self.root / name).unlink(missing_ok=True)
                self._forget(name)

    def _drop_sets(self, whole: set[str]) -> None:
        for key in [key for key in self._sets if key not in whole and self._role.is_followed(f'{key}/')]:
            if (self.root / key / 'IN_USE').exists() or (self.root / key / 'KEPT').exists():
                continue
            shutil.rmtree(self.root / key, ignore_errors=True)
            del self._sets[key]
            self._versions.pop(store_layout.marker(key), None)

    def _forget(self, name: str) -> None:
        self._files.pop(name, None)
        self._versions.pop(name, None)


def _identity(found: os.stat_result) -> _Local:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _by_set(files: Mapping[str, os.stat_result]) -> dict[str, dict[str, _Local]]:
    """Returns the files that do not change later of each set that is complete."""
    sets = dict[str, dict[str, _Local]]()
    for name, found in files.items():
        key = store_layout.set_of(name)
        if key is not None and not store_layout.is_change(name):
            sets.setdefault(key, {})[name] = _identity(found)
    return {key: members for key, members in sets.items() if store_layout.is_complete(key, members)}


def _by_number(key: str) -> tuple[int, str]:
    number = ''.join(filter(str.isdecimal, key.rpartition('/')[2]))
    return int(number or 0), key
