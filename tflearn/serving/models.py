"""The models that are served: each policy's newest version, or pinned ones, updated while requests are answered."""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from absl import logging

from tflearn.net.grpc_server import Refused
from tflearn.policies import versions
from tflearn.serving.served_version import ServedVersion

_LOG_SECS = 30.0


class ModelHolder:
    """The served versions of one policy.

    `refresh` loads a version while requests are answered, and then changes one reference, so that no request waits. An
    old version is unloaded when the last request that uses it is answered.
    """

    def __init__(
        self, directory: pathlib.Path, load: Callable[[pathlib.Path], ServedVersion], pinned: Sequence[int] = ()
    ):
        """
        Args:
          directory: the directory of the versions, which need not exist yet; its name is the model's.
          pinned: the versions to serve; none serves the newest one.
        """
        self.name = directory.name
        self._directory = directory
        self._load = load
        self._pinned = tuple(pinned)
        self._served: Mapping[int, ServedVersion] = {}
        self._identities: dict[int, tuple[int, int]] = {}
        self._failed: dict[int, tuple[tuple[int, int], str]] = {}

    def refresh(self) -> bool:
        """Loads versions that are not loaded yet; returns whether that changed anything. Not thread-safe.

        A version that cannot be loaded is logged once and skipped; the versions that were served remain.
        """
        changed = False
        for version in self._pinned or tuple(reversed(versions.versions(self._directory))):
            identity = self._identity(version)
            if identity is None:  # pruned meanwhile, or a pinned version that does not exist (yet)
                continue
            if identity == self._identities.get(version):
                if self._pinned:
                    continue
                break
            if self._failed.get(version, (None,))[0] != identity and self._take(version, identity):
                changed = True
                if not self._pinned:
                    break
        return changed

    def get(self, version: int | None = None) -> ServedVersion:
        """Returns the version; without a number, the highest one.

        Raises:
          Refused: if there is no such version, or none is loaded yet: the client may try again.
        """
        served = self._served  # read once: `refresh` may replace it at any time
        if not served:
            raise Refused(
                'UNAVAILABLE', f'the model {self.name!r} waits for a version in {self._directory}; try again later'
            )
        if version is None:
            return served[max(served)]
        if version in served:
            return served[version]
        raise Refused(
            'NOT_FOUND', f'got a request for version {version} of {self.name!r}, which serves {sorted(served)}'
        )

    @property
    def ready(self) -> bool:
        """Whether a version is served."""
        return bool(self._served)

    def statuses(self) -> dict[int, str | None]:
        """Returns the newest version first, why each could not be loaded; None for those that are served."""
        found = {version: error for version, (_, error) in self._failed.copy().items()} | dict.fromkeys(self._served)
        return dict(sorted(found.items(), reverse=True))

    def _take(self, version: int, identity: tuple[int, int]) -> bool:
        try:
            loaded = self._load(self._directory / str(version))
        except FileNotFoundError:
            return False
        except Exception as error:  # a damaged version must not end the service of another one
            if _is_temporary(error):
                _log_failure(self.name, f'could not load version {version}', error)
                return False
            logging.error('%s: version %d is not served: %s', self.name, version, error)
            self._failed[version] = (identity, str(error))
            return False
        self._served = {**self._served, version: loaded} if self._pinned else {version: loaded}
        self._identities = {known: self._identities.get(known, identity) for known in self._served}
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
          pinned: the versions to serve; none serves the newest one of each policy.
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
          Refused: if there is none of that name, or no policy has a version yet: the client may try again.
        """
        holder = self._holders.get(name)
        if holder is None and not any(each.ready for each in self.holders):
            raise Refused(
                'UNAVAILABLE', f'the server waits for a version of any policy in {self._root}; try again later'
            )
        if holder is None:
            raise Refused('NOT_FOUND', f'got the model name {name!r}; need one of {sorted(self._holders)}')
        return holder

    @property
    def missing(self) -> list[str]:
        """The named policies without a version; if no policies were named and none has a version, 'any policy'."""
        ready = {holder.name for holder in self.holders if holder.ready}
        if self._names:
            return [name for name in self._names if name not in ready]
        return [] if ready else ['any policy']

    @property
    def holders(self) -> list[ModelHolder]:
        return list(self._holders.values())

    def serving_config(self) -> str:
        """Returns the --model_config_file with which TensorFlow Serving serves the same versions."""
        policy = ''.join(f' versions: {version}' for version in self._pinned)
        which = f'    model_version_policy {{ specific {{{policy} }} }}\n' if self._pinned else ''
        configs = [
            f'  config {{\n    name: {json.dumps(name)}\n    base_path: {json.dumps(str(self._root / name))}\n'
            f'    model_platform: "tensorflow"\n{which}  }}\n'
            for name in sorted(self._holders)
        ]
        return f'model_config_list {{\n{"".join(configs)}}}\n'


def _refreshed(holder: ModelHolder) -> bool:
    try:
        return holder.refresh()
    except OSError as error:
        _log_failure(holder.name, 'could not look for versions', error)
        return False


def _log_failure(name: str, what: str, error: Exception) -> None:
    logging.log_every_n_seconds(logging.WARNING, '%s: %s; tries again: %s', _LOG_SECS, name, what, error)


def _is_temporary(error: BaseException | None) -> bool:
    """Returns whether an error, or what caused it, is of the machine: without handles or memory, a lost disk."""
    while error is not None:
        if isinstance(error, OSError | tf.errors.ResourceExhaustedError | MemoryError):
            return not isinstance(error, FileNotFoundError)
        error = error.__cause__
    return False


def _directories(root: pathlib.Path) -> list[pathlib.Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir() and not path.name.startswith('.')]
    except FileNotFoundError:
        return []
    except OSError as error:
        _log_failure(root.name, 'could not look for policies', error)
        return []
