"""The models that are served: pinned versions, those with a state, or the newest;
updated while they answer.
"""

import json
import pathlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from tflearn.core import side_tasks
from tflearn.core.errors import UserValueError, is_temporary
from tflearn.extensions.serving.exploration import CannotExplore
from tflearn.extensions.serving.served_version import ServedVersion
from tflearn.net.grpc_server import GrpcRefusal
from tflearn.policies import states, versions
from tflearn.policies.states import States


class _Served(NamedTuple):
    """What is served: the loaded versions, and which of them answers;
    without states the newest one.
    """

    versions: Mapping[int, ServedVersion] = {}
    states: States | None = None

    @property
    def default(self) -> int:
        return self.states.stable if self.states else max(self.versions)


class ModelHolder:
    """The served versions of one policy.

    `refresh` loads a version while requests are answered, and then changes one reference, so that
    no request waits. An old version is unloaded when the last request that uses it is answered.
    What a rollback returns to stays loaded.
    """

    def __init__(
        self, directory: pathlib.Path, load: Callable[[pathlib.Path], ServedVersion], pinned: Sequence[int] = ()
    ):
        """
        Args:
          directory: the directory of the versions, which need not exist yet; its name is the
            model's.
          pinned: the versions to serve; none follows `policies.states`, without which the newest
            one is served.
        """
        self.name = directory.name
        self._directory = directory
        self._load = load
        self._pinned = tuple(pinned)
        self._served = _Served()
        self._stamp: tuple[int, ...] = ()  # of the file of the states
        self._wanted: States | None = None  # what it says
        self._identities: dict[int, tuple[int, int]] = {}
        self._failed: dict[int, tuple[tuple[int, int], str]] = {}
        self._explores = True

    def refresh(self) -> bool:
        """Loads versions that are not loaded yet; returns whether that changed anything.
        Not thread-safe.

        A version that cannot be loaded is logged once and skipped; the versions that were served
        remain.
        """
        wanted = self._pinned
        if not wanted:
            self._read_states()
            wanted = self._wanted.versions if self._wanted else ()
        changed = self._follow_states()
        for version in wanted or tuple(reversed(versions.versions(self._directory))):
            if self._is_too_early(version):
                continue
            identity = self._identity(version)
            if identity is None:  # pruned meanwhile, or a pinned version that does not exist (yet)
                continue
            if identity == self._identities.get(version):
                if wanted:
                    continue
                break
            if self._failed.get(version, (None,))[0] != identity and self._take(version, identity, bool(wanted)):
                changed = True
                self._follow_states()
                if not wanted:
                    break
        return changed

    def _is_too_early(self, version: int) -> bool:
        """Returns whether a version has to wait for the stable one,
        in whose place it may not answer.
        """
        wanted = self._wanted
        if wanted is None or wanted.stable in self._served.versions:
            return False
        return version in (wanted.canary, wanted.shadow)

    def _read_states(self) -> None:
        try:
            found = (self._directory / states.FILE).stat()
        except FileNotFoundError:
            self._stamp, self._wanted = (), None
            return
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            try:
                self._wanted = states.read(self._directory)
            except UserValueError as error:
                side_tasks.record_failure(f'read the states of {self.name}', error)
            self._stamp = stamp

    def _follow_states(self) -> bool:
        """Takes the states over as soon as their stable version is loaded;
        returns whether that changed anything.
        """
        served, wanted = self._served, self._wanted
        if wanted == served.states or (wanted and wanted.stable not in served.versions):
            return False
        keep = wanted.versions if wanted else (max(served.versions, default=0),)
        self._served = _Served({each: served.versions[each] for each in keep if each in served.versions}, wanted)
        self._identities = {each: self._identities[each] for each in self._served.versions}
        logging.info('%s: %s', self.name, wanted.labels if wanted else 'has no states')
        return True

    def get(self, version: int | None = None) -> ServedVersion:
        """Returns the version; without a number, the stable one,
        or the newest if there are no states.

        Raises:
          GrpcRefusal: if there is no such version, or none is loaded yet: the client may try again.
        """
        served = self._served  # read once: `refresh` may replace it at any time
        if not served.versions:
            raise GrpcRefusal(
                'UNAVAILABLE', f'the model {self.name!r} waits for a version in {self._directory}; try again later'
            )
        version = served.default if version is None else version
        if version in served.versions:
            return served.versions[version]
        raise GrpcRefusal(
            'NOT_FOUND', f'got a request for version {version} of {self.name!r}, which serves {sorted(served.versions)}'
        )

    def of_label(self, label: str) -> ServedVersion:
        """Returns the version of a label: 'stable', 'canary' or 'shadow'.
        Raises GrpcRefusal if there is none.
        """
        labels = self._served.states.labels if self._served.states else {}
        if label not in labels:
            known = ', '.join(sorted(labels)) or 'none'
            raise GrpcRefusal('NOT_FOUND', f'got the label {label!r} of {self.name!r}, which has: {known}')
        return self.get(labels[label])

    def of_key(self, key: str) -> ServedVersion:
        """Returns the version that answers the requests of a key; '' is another key each time.
        Raises as `get`.
        """
        served = self._served
        if served.states and served.states.canary in served.versions:
            arm = served.states.arm(key or secrets.token_hex(8))
            return self.get(served.states.labels[arm])
        return self.get()

    def arm(self, version: int) -> str:
        """Returns the state of a version; '' if it has none."""
        labels = self._served.states.labels if self._served.states else {}
        return next((label for label, each in labels.items() if each == version), '')

    @property
    def shadow(self) -> ServedVersion | None:
        """The version whose answers are logged only; None if there is none, or it is not loaded."""
        served = self._served
        found = served.states.shadow if served.states else None
        return None if found is None else served.versions.get(found)

    @property
    def states(self) -> States | None:
        """The states that are followed; None if the newest version answers."""
        return self._served.states

    @property
    def ready(self) -> bool:
        """Whether a version is served."""
        return self._served.default in self._served.versions if self._served.versions else False

    @property
    def awaited(self) -> bool:
        """Whether a version may still come that is served."""
        return not self.ready and self._explores

    def statuses(self) -> dict[int, str | None]:
        """Returns the newest version first, why each could not be loaded;
        None for those that are served.
        """
        found = {version: error for version, (_, error) in self._failed.copy().items()} | dict.fromkeys(
            self._served.versions
        )
        return dict(sorted(found.items(), reverse=True))

    def _take(self, version: int, identity: tuple[int, int], beside: bool) -> bool:
        """Loads a version, and serves it alone or `beside` others that are wanted;
        returns whether it could.
        """
        try:
            loaded = self._load(self._directory / str(version))
        except FileNotFoundError:
            return False
        except Exception as error:  # a damaged version must not end the service of another one
            if is_temporary(error):
                side_tasks.record_failure(f'load version {version} of {self.name}', error)
                return False
            if isinstance(error, CannotExplore):  # its later versions cannot either
                logging.warning('%s is left out: %s; --policies names what is served', self.name, error)
                self._explores = False
            else:
                logging.error('%s: version %d is not served: %s', self.name, version, error)
            self._failed[version] = (identity, str(error))
            return False
        served = self._served
        keep = {*self._pinned, *(self._wanted.versions if self._wanted else ())}
        if beside and served.versions:
            keep.add(served.default)  # until the new stable one is there
        others = {known: each for known, each in served.versions.items() if known in keep}
        self._served = _Served({**others, version: loaded}, served.states)
        self._identities = {known: self._identities.get(known, identity) for known in self._served.versions}
        self._identities[version] = identity
        self._failed.pop(version, None)
        logging.info('%s: serves version %d', self.name, version)
        return True

    def _identity(self, version: int) -> tuple[int, int] | None:
        """Identifies a version's files: training that resumed from an earlier step may export a number again."""
        try:
            # Not the metadata, which the evaluate job changes.
            found = (self._directory / str(version) / tf.saved_model.SAVED_MODEL_FILENAME_PB).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


class Models:
    """All policies that are served, by name."""

    def __init__(
        self,
        root: pathlib.Path,
        load: Callable[[pathlib.Path], ServedVersion],
        names: Sequence[str] = (),
        pinned: Sequence[int] = (),
    ):
        """
        Args:
          root: the directory with a directory for each policy.
          names: the policies to serve; none serves all, including those that appear later.
          pinned: see `ModelHolder`.
        """
        self._root, self._pinned = root, tuple(pinned)
        self._names = tuple(names)
        self._make = lambda name: ModelHolder(root / name, load, pinned)
        self._holders: dict[str, ModelHolder] = {name: self._make(name) for name in self._names}

    def refresh(self) -> bool:
        """Loads new policies and versions; returns whether anything changed. Not thread-safe."""
        found = [] if self._names else [path.name for path in _directories(self._root)]
        new = {name: self._make(name) for name in found if name not in self._holders}
        self._holders = {**self._holders, **new}
        return sum(_refreshed(holder) for holder in self._holders.values()) > 0

    def get(self, name: str) -> ModelHolder:
        """Returns the policy.

        Raises:
          GrpcRefusal: if there is none of that name, or no policy has a version yet: the client may
            try again.
        """
        holder = self._holders.get(name)
        if holder is None and not any(each.ready for each in self.holders):
            raise GrpcRefusal(
                'UNAVAILABLE', f'the server waits for a version of any policy in {self._root}; try again later'
            )
        if holder is None:
            raise GrpcRefusal('NOT_FOUND', f'got the model name {name!r}; need one of {sorted(self._holders)}')
        return holder

    @property
    def missing(self) -> list[str]:
        """The named policies without a version; if no policies were named and none has a version,
        'any policy'.
        """
        ready = {holder.name for holder in self.holders if holder.ready}
        if self._names:
            return [name for name in self._names if name not in ready]
        return [] if ready else ['any policy']

    @property
    def holders(self) -> list[ModelHolder]:
        return list(self._holders.values())

    @property
    def have_states(self) -> bool:
        """Whether a policy has states, which are to be followed at once."""
        return any(holder.states for holder in self.holders)

    def serving_config(self) -> str:
        """Returns the --model_config_file with which TensorFlow Serving serves the same versions."""
        configs = [
            f'  config {{\n    name: {json.dumps(name)}\n    base_path: {json.dumps(str(self._root / name))}\n'
            f'    model_platform: "tensorflow"\n{self._which(holder.states)}  }}\n'
            for name, holder in sorted(self._holders.items())
        ]
        return f'model_config_list {{\n{"".join(configs)}}}\n'

    def _which(self, followed: States | None) -> str:
        chosen = self._pinned or (tuple(followed.labels.values()) if followed else ())
        numbers = ''.join(f' versions: {version}' for version in chosen)
        labels = ''.join(
            f'    version_labels {{ key: "{label}" value: {version} }}\n'
            for label, version in (followed.labels if followed else {}).items()
        )
        return (f'    model_version_policy {{ specific {{{numbers} }} }}\n' if chosen else '') + labels


def _refreshed(holder: ModelHolder) -> bool:
    with side_tasks.guarded(f'look for versions of {holder.name}'):
        return holder.refresh()
    return False


def _directories(root: pathlib.Path) -> list[pathlib.Path]:
    with side_tasks.guarded(f'look for policies in {root}'):
        try:
            found = list(root.iterdir())
        except FileNotFoundError:
            return []
        return [path for path in found if path.is_dir() and not path.name.startswith('.')]
    return []
