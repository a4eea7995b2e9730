"""RunDir: every path under --root_dir, and small JSON files that are written atomically."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tflearn.core import extensions, forms
from tflearn.core.errors import UserError, UserOSError, UserValueError
from tflearn.files import lock, messages
from tflearn.files.lock import LOCAL, Store
from tflearn.files.temporary import PART, remove_leftovers_once, temporary

_MAX_NAME, _MAX_PART = 1024, 255  # S3's limit of a name, file systems' limit of a part [bytes]

# Modes of a new directory of a run, of runs, or of logged decisions: who can write to it controls
# the run, and what it learned or logged is the user's.
PRIVATE, _GROUP_READS = 0o700, 0o750

# The beginning of a URL. pathlib makes one slash of two.
_URL_SCHEME = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*:/')
_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*://')


# What ends a line or cannot be written: a script or a log would name another path than the one that
# is meant.
_UNREADABLE = '\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff'
# What TensorFlow takes as a pattern of names: it would not find a checkpoint in a directory that is
# called [x].
_PATTERN = r'*?\[\\'

# How a local copy of a run is called in messages: its directory -> its URL.
_URLS: dict[str, str] = {}


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a run directory is in an object store, such as 's3://bucket/run'."""
    return isinstance(path, str) and _URL.match(path) is not None


def local_path(path: str | os.PathLike[str], name: str, may_be_pattern: bool = False) -> pathlib.Path:
    """Returns the absolute path of a local file or directory; '~' is the home directory.

    Args:
      name: the flag's or argument's name, for the error.
      may_be_pattern: whether it may stand for several directories, as 'data/day-*'.

    Raises:
      ValueError: if it is a URL, such as gs://bucket/run, which would become a local folder named
        'gs:'; or '~name' of an unknown user; or if TensorFlow would take it, or the working
        directory, as a pattern.
    """
    given = f'got {name}={os.fspath(path)!r}'
    if _URL_SCHEME.match(os.fspath(path)):
        raise UserValueError(
            f'{given}, which is a URL; need a path of a local or mounted file system; only --root_dir of the jobs, '
            'launch, watch, run_metrics and doctor can be in an object store'
        )
    try:
        absolute = pathlib.Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise UserValueError(f'{given}, whose home directory is unknown ({error}); need another path') from error
    if wrong := re.search(f'[{_UNREADABLE}{"" if may_be_pattern else _PATTERN}]', str(absolute)):
        raise UserValueError(
            f'{given}, which is {str(absolute)!r}, with {wrong[0]!r}; need a path without control characters, and '
            'without *, ?, [ and \\, of which TensorFlow makes a pattern of file names; rename the directory, or '
            'choose another one'
        )
    return absolute


def is_inside(name: Any) -> bool:
    """Whether a name that somebody else has written is that of a file below a directory,
    wherever that is.

    Its parts, which slashes divide, are not '.', '..' or empty, and not longer than file systems
    allow; it has no backslash, which divides names elsewhere, and no control character.
    """
    if not isinstance(name, str) or not name.isprintable() or '\\' in name or len(name) > _MAX_NAME:
        return False
    return all(part not in ('', '.', '..') and len(part.encode()) <= _MAX_PART for part in name.split('/'))


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers_once(path.parent)
    written = temporary(path.with_name(f'{path.name}-{threading.get_ident()}'), PART)
    try:
        with written.open('wb') as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    """Writes one JSON object to `path` atomically."""
    write_atomically(path, json.dumps(value, indent=2) + '\n')


def read_json(path: pathlib.Path, form: Any = dict[str, Any]) -> dict[str, Any] | None:
    """Returns the JSON object in `path`; None if there is no such file.

    Args:
      form: what it has to hold, see `core.forms`.

    Raises:
      ValueError: if it holds something else.
      OSError: if it cannot be read now, without a free file handle for example.
    """
    if path.exists() and not path.is_file():  # to read a named pipe would wait for ever
        raise UserValueError(f'got {path}, which is no regular file; need a JSON object; remove it')
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserOSError(
            f'got {path}, which cannot be read ({error.strerror}); need to read it; see to that, and try again'
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserValueError(f'got a damaged file {path} ({error}); need a JSON object; remove the file') from error
    if fault := forms.fault(value, form, '', f'a damaged file {path}, with '):
        raise UserValueError(f'{fault}; remove the file')
    return value


def call_by_url(directory: pathlib.Path, url: str) -> None:
    """Makes messages name `url` instead of the local copy of a run in `directory`."""
    _URLS[str(directory)] = url


def display_text(text: str) -> str:
    """Returns a message for the user, with the URLs of the run directories that have one."""
    for directory, url in _URLS.items():
        text = text.replace(directory, url)
    return text


def job_kind(name: str, status: Mapping[str, Any], kinds: Collection[str]) -> str | None:
    """Returns which of these kinds of jobs a status is of, by the name of its file;
    None if of no one.
    """
    kind = next((kind for kind in kinds if re.fullmatch(rf'{kind}(_\d+)?', name)), None)
    # A collector's name is its pod's on a cluster.
    return kind or ('collect' if 'policy_version' in status else None)


class RunDir:
    """The files of one run. Directories are created only when something is written.

    Attributes:
      root: the absolute path.
      location: the --root_dir of the run's jobs: the path, or the URL of which `root` is a local
        copy.
      store: how files reach the other jobs.
      checkpoints: the learner's checkpoints (`tf.train.CheckpointManager`'s layout).
      replay_checkpoints: the replay server's checkpoints: `<number>/`, each with the files of its
        backend; see also `shard_checkpoints`.
      policies: the directory that holds a directory for each exported policy.
      greedy_policy: the directory of the exported versions of the policy that is evaluated.
      serving_models: TensorFlow Serving's --model_config_file for this run.
      serving_batching: TensorFlow Serving's --batching_parameters_file for this run.
      decisions: files of the serve job's decision log, on their way to an object store.
      cloning: the run directory of the behavioural cloning that a run may begin with.
      commands: the commands that start the run's jobs by hand.
      config: the run's gin configuration.
      config_values: the same settings by name, as text.
      objects: the gin file of a run that Python objects describe, if other processes can import
        them.
      code_snapshot: git revisions and differences of the running code, with --code_snapshot.
      evaluations: one JSON object per evaluation.
      policy_evaluations: the results of evaluations of single policies, a JSON file each.
      league: the scores of self-play against earlier versions.
      learning_curve: the learning curve as an image.
      evaluation_image: another name of the learning curve's image.
      videos: videos of evaluations.
      logs: the directory of the jobs' logs.
      done: written once, when the run has ended.
      train_result: written by the train job when it has reached a stop condition and exported the
        last policy.
      stop_request: written to ask the train job to finish; holds the reason.
      reward_weights: written to change the weights of several rewards during a run.
      topology: the jobs of a run that a scheduler starts.
      failure: written when a job of such a run failed permanently; ends the others.
      submitted: the scheduler's job ids.
      manifests: which checkpoints of the learner and of the replay server belong together.
      owners: the locks of the learner and of the replay server, see `lock`.
      feed: the journal of the feed's dispatcher.
    """

    def __init__(self, root: str | os.PathLike[str], store: Store | None = None, location: str | None = None):
        """`root` is a path of a local or mounted file system. Raises ValueError if it is a URL."""
        self.root = path = local_path(root, 'root_dir')
        self.store, self.location = store or LOCAL, location or str(self.root)
        self.checkpoints, self.replay_checkpoints = path / 'train' / 'checkpoints', path / 'replay' / 'checkpoints'
        self.policies = path / 'policies'
        self.greedy_policy = self.policies / 'greedy_policy'
        self.serving_models = path / 'serving' / 'models.config'
        self.serving_batching = path / 'serving' / 'batching.config'
        self.decisions = path / 'serving' / 'decisions'
        self.cloning, self.commands = path / 'cloning', path / 'commands.txt'
        self.config, self.config_values = path / 'config.gin', path / 'config_values.json'
        self.objects = path / 'run.gin'
        self.code_snapshot = path / 'code_snapshot.md'
        self.evaluations, self.policy_evaluations = path / 'evaluations.jsonl', path / 'policy_evaluations'
        self.league = path / 'league.json'
        self.learning_curve, self.evaluation_image = path / 'learning_curve.png', path / 'evaluation.png'
        self.videos, self.logs, self.done = path / 'videos', path / 'logs', path / 'DONE'
        self.train_result, self.stop_request = path / 'train' / 'result.json', path / 'train' / 'stop_request.json'
        self.reward_weights, self.topology = path / 'reward_weights.json', path / 'topology.json'
        self.failure, self.submitted = path / 'failure.json', path / 'submitted.json'
        self.manifests, self.owners, self.feed = path / 'manifests', path / 'owners', path / 'feed'
        self._lock: lock.Lock | None = None

    def summaries(self, job: str) -> pathlib.Path:
        """TensorBoard events of `job`."""
        return self.root / 'summaries' / job

    def shard_checkpoints(self, shard: int) -> pathlib.Path:
        """The checkpoints of one of several replay servers;
        the first one has those of a single server.
        """
        return self.root / 'replay' / str(shard) / 'checkpoints' if shard else self.replay_checkpoints

    def saved_shards(self) -> list[pathlib.Path]:
        """Returns the directories of the checkpoints of all replay servers that the run had."""
        replay = self.root / 'replay'
        names = [path.name for path in replay.iterdir()] if replay.is_dir() else []
        last = max((int(name) for name in names if name.isdecimal()), default=0)
        return [self.shard_checkpoints(shard) for shard in range(last + 1)]

    def check_num_shards(self, num_shards: int) -> None:
        """Checks that all of the run's replay is served. There may be more servers than before.

        Raises:
          ValueError: if there are checkpoints of more replay servers.
        """
        saved = self.saved_shards()
        if len(saved) > num_shards:
            raise UserValueError(
                f'got {num_shards} replay server(s) for {self.root}, whose replay was saved by {len(saved)}; need as '
                'many, since the rest would be left out; to do without it, move '
                f'{", ".join(str(path.parent) for path in saved[num_shards:])} away'
            )

    def policy(self, name: str) -> pathlib.Path:
        """The directory of policy `name`'s exported versions:
        `<train step>/saved_model.pb` below it.
        """
        return self.policies / name

    def product(self, name: str) -> pathlib.Path:
        """The directory of the models for products of policy `name`: `<train step>/` below it."""
        return self.root / 'products' / name

    def converted(self, name: str, file: str) -> pathlib.Path:
        """A model of policy `name` in another format, ONNX or TFLite."""
        return self.root / 'converted' / name / file

    def log(self, job: str) -> pathlib.Path:
        """The job's log."""
        return self.logs / f'{job}.log'

    def status(self, job: str) -> pathlib.Path:
        """The file of the job's newest metrics, see `Status`."""
        return self.root / 'status' / f'{job}.json'

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Returns the newest metrics of all jobs by the names of their files, without damaged ones;
        see `Status`.
        """
        found = {}
        for path in sorted(self.status('').parent.glob('[!.]*.json')):
            with contextlib.suppress(UserError):
                found[path.stem] = read_json(path, messages.Status) or {}
        return found

    def living_jobs(self) -> dict[str, int]:
        """Returns the process numbers of the jobs that run on this machine,
        by the names of their status files.
        """
        return {
            name: pid
            for name, status in self.statuses().items()
            if isinstance(pid := status.get('pid'), int)
            and status.get('started')
            and lock.started(pid) == status['started']
        }

    def tracker(self, name: str) -> pathlib.Path:
        """What a tracker has had of the run."""
        return self.root / 'trackers' / f'{name}.json'

    def address(self, job: str) -> pathlib.Path:
        """Where a job of a scheduler publishes its address for the others."""
        return self.root / 'addresses' / f'{job}.json'

    def done_line(self) -> str | None:
        """Returns the content of DONE in one line; None while the run is not finished."""
        done = read_json(self.done, messages.Done)
        if done is None:
            return None
        return (
            f'the run in {self.location} is finished ({done["reason"]}, train step {done["train_step"]}); nothing to '
            'do, unless the stop condition that ended it is raised'
        )

    @contextlib.contextmanager
    def own(self, job: str, stop: threading.Event) -> Iterator[None]:
        """Makes this process the only one that works as `job` in this directory,
        for the time of the block.

        Raises:
          RuntimeError: if another process does; see `lock.hold`.
        """
        with lock.hold(self.owners, job, stop, self.store) as self._lock:
            if self._lock is not None:
                self.store.begin(self._lock.check)
            try:
                yield
            finally:
                self.store.end()

    def run_id(self) -> str:
        """Returns the id of this run, which is made once; '' in an object store."""
        if self.store is not LOCAL:
            return ''
        path = self.root / 'run_id'
        if not path.exists():
            write_atomically(path, secrets.token_hex(8) + '\n')
        return path.read_text(encoding='ascii').strip()

    @property
    def epoch(self) -> int:
        """The epoch in which this process owns the directory by `own`; 0 if it does not."""
        return self._lock.epoch if self._lock else 0

    def check_owner(self) -> None:
        """Checks, before something is saved, published or exported,
        that no other process took the directory over.

        Raises:
          RuntimeError: if one did while this process had stopped. Nothing, if this process does not
            own it by `own`.
        """
        if self._lock is not None:
            self._lock.check()

    def make(self, share_with_group: bool = False) -> None:
        """Creates the root, for this user alone, and checks that it can be written to.
        An existing one keeps its mode.

        Args:
          share_with_group: lets the users of its group read a new root.

        Raises:
          ValueError: if the root is not a directory or not writable.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.root.mkdir(PRIVATE)
                if share_with_group:
                    self.root.chmod(_GROUP_READS)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UserValueError(
                f'got root_dir={str(self.root)!r}, which cannot be written to ({error.strerror}); '
                'need a directory of your own; choose another --root_dir'
            ) from error


@contextlib.contextmanager
def opened_run_dir(root: str, job: str, name: str = '') -> Iterator[RunDir]:
    """Provides the run directory that --root_dir names: the local copy of one in an object store.

    Args:
      root: a path or a URL.
      job: the program, which decides what is copied from a URL and to it.
      name: the name of its status file, if that is another one.

    Raises:
      ValueError: if it cannot be used.
      ImportError: if it is a URL and fsspec is missing.
      OSError: if the last files could not be written to the store.
    """
    if not is_url(root):
        yield RunDir(root)
        return
    with extensions.load('run_directories').opened(root, job, name) as run_dir:
        yield run_dir
