"""Which files of a run belong together, and which may be seen only after others.

A *set* is files that are valid only together: a checkpoint, a version of a policy. In the store it
is valid with its marker, `.<name>.whole`, which lists the sizes and digests of its files; the
marker is written last and deleted first. All other files are valid by themselves. *Links* refer to
sets, and *ends* say that something is over: they are transferred after everything that was written
before them.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

from tflearn.core import forms
from tflearn.core.settings import NonNegativeInt
from tflearn.files import digests
from tflearn.files.run_dir import is_inside

_CHECKPOINT = re.compile(r'(.*/ckpt-\d+)\.(?:index|data-[\d-]+of-\d+)')
_DIRECTORY = re.compile(
    r'(replay/(?:\d+/)?checkpoints/\d+|(?:policies|products)/[^/]+/(?:updates/)?(?:\d+|model-\w+|\.moved_aside-[\d-]+))/.*'
)
_MARKER = re.compile(r'(.*/)\.([^/]+)\.whole')
# What an evaluation changes in a version of a policy: valid by itself. (Runs of before had a README.md.)
_CHANGES = re.compile(r'policies/.*/\d+/(?:KEPT|IN_USE|metadata\.json|README\.md)')
_LINK = re.compile(r'policies/[^/]+/(?:best|latest)|.*/checkpoints/checkpoint')
_END = re.compile(r'DONE|failure\.json|train/result\.json')
# Files that grow, which are uploaded again as a whole: seldom.
_GROWING = re.compile(r'(?:logs|summaries)/.*')

Described = Mapping[str, tuple[int, str | None]]


class _Marker(TypedDict):
    files: dict[str, tuple[NonNegativeInt, str | None]]


class BadObject(ValueError):
    """An object that no program of ours writes. It is passed over: its file might be anywhere,
    or be unchecked.
    """


def set_of(name: str) -> str | None:
    """Returns the set that a file belongs to; None if it is valid by itself."""
    match = _CHECKPOINT.fullmatch(name) or _DIRECTORY.fullmatch(name)
    return match[1] if match else None


def is_change(name: str) -> bool:
    """Whether a file of a set may change later."""
    return _CHANGES.fullmatch(name) is not None


def is_complete(key: str, names: Iterable[str]) -> bool:
    """Whether a set has the file that is written last and deleted first."""
    if '/ckpt-' in key:
        return f'{key}.index' in names
    return not key.startswith('replay/') or f'{key}/DONE' in names


def is_link(name: str) -> bool:
    """Whether a file refers to a set, or is what may change in one."""
    return _LINK.fullmatch(name) is not None or is_change(name)


def is_end(name: str) -> bool:
    """Whether a file says that something is over."""
    return _END.fullmatch(name) is not None


def is_lock(name: str) -> bool:
    """Whether a file is a lock, or the folder of all locks,
    which must be read and written in time.
    """
    return name.split('/')[0] == 'owners'


def is_growing(name: str) -> bool:
    """Whether a file is written on and on."""
    return _GROWING.fullmatch(name) is not None


def marker(key: str) -> str:
    """Returns the name of a set's marker."""
    folder, _, last = key.rpartition('/')
    return f'{folder}/.{last}.whole'


def marked(name: str) -> str | None:
    """Returns the set whose marker has this name; None if it is no marker."""
    match = _MARKER.fullmatch(name)
    return match[1] + match[2] if match else None


def in_order(names: list[str]) -> list[str]:
    """Returns the files of a set in the order in which they are put into place:
    what shows that it is there, last.
    """
    return sorted(names, key=lambda name: (name.endswith(('.index', '/DONE', '/saved_model.pb')), name))


def local_files(root: pathlib.Path) -> dict[str, os.stat_result]:
    """Returns the files below a run directory by name, without temporary ones."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith('.') or name.startswith('.moved_aside-')]
        start = folder[len(str(root)) + 1 :]
        # A link is a file here: its content is where it points to.
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *linked]:
            if not name.startswith('.'):
                try:
                    found[f'{start}/{name}' if start else name] = os.lstat(os.path.join(folder, name))
                except FileNotFoundError:  # deleted meanwhile
                    continue
    return found


def describe(root: pathlib.Path, names: list[str]) -> Described:
    """Returns size and SHA-256 of files; of those that may change later, no digest."""
    described: dict[str, tuple[int, str | None]] = {}
    for name in names:
        content = root / name
        digest = None if is_change(name) else digests.file_digest(content)
        described[name] = (0 if digest is None else content.stat().st_size, digest)
    return described


def encode(described: Described) -> bytes:
    """Returns the content of a marker."""
    return (json.dumps({'files': described}, indent=1, sort_keys=True) + '\n').encode()


def decode(content: bytes, key: str) -> Described:
    """Returns what the marker of a set lists. Raises BadObject if it is damaged,
    or lists what is not in the set.
    """
    try:
        marker = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadObject(f'got a damaged marker ({error})') from error
    if fault := forms.fault(marker, _Marker, '', 'a damaged marker, with '):
        raise BadObject(fault)
    described = {name: (size, digest) for name, (size, digest) in marker['files'].items()}
    for name, (_, digest) in described.items():
        if not is_inside(name) or set_of(name) != key:
            raise BadObject(f'got a marker that lists {name[:80]!a}; need files of {key}')
        if digest is None and not is_change(name):
            raise BadObject(f'got a marker that lists {name} without its SHA-256')
    if not (members := [name for name in described if not is_change(name)]) or not is_complete(key, members):
        raise BadObject('got a marker that does not list a complete set')
    return described


def whole_sets(names: Mapping[str, object]) -> Iterator[str]:
    """Yields the sets whose markers are among the names of objects.
    Markers of anything else are passed over.
    """
    for name in names:
        key = marked(name)
        if key is not None and key in (set_of(f'{key}/file'), set_of(f'{key}.index')):
            yield key


# What an evaluation changes in the policies of the train job.
_MARKS = r'policies/[^/]+/(?:best|\d+/(?:KEPT|IN_USE|metadata\.json|README\.md))'
# Earlier states that nobody goes on from.
_SET_ASIDE = re.compile(r'.*/(?:unused/|\.moved_aside-).*')


@dataclasses.dataclass(frozen=True)
class FileAccess:
    """What a program does with the files of a run; the names are those below the run directory.

    Attributes:
      writes: a pattern of the files that it writes; it deletes them, too.
      follows: a pattern of the files that others change while it runs.
      restores: a pattern of the files that it reads once, at its start.
      folders: where the files that it follows are, '' for those beside them all; each is listed
        once a second.
      owns: it writes and restores sets only while it has a lock, see `RunDir.own`.
    """

    writes: str = ''
    follows: str = ''
    restores: str = ''
    folders: tuple[str, ...] = ()
    owns: bool = False

    def is_written(self, name: str) -> bool:
        return re.fullmatch(self.writes, name) is not None

    def is_followed(self, name: str) -> bool:
        return re.fullmatch(self.follows, name) is not None and not self.is_written(name)

    def is_restored(self, name: str) -> bool:
        if _SET_ASIDE.fullmatch(name):
            return False
        return re.fullmatch(self.restores, name) is not None or self.is_followed(name)


_TRAIN = FileAccess(
    writes=rf'(?!train/stop_request\.json$)(?!{_MARKS}$)(?:(?:train|policies|products|cloning)/.*'
    r'|summaries/(?:train|collect|validation)/.*|status/train\.json|config\.gin|config_values\.json|code_snapshot\.md)',
    follows=rf'DONE|reward_weights\.json|train/stop_request\.json|{_MARKS}',
    restores=r'(?:train|policies|products|cloning)/.*|config\.gin|config_values\.json|status/train\.json',
    folders=('', 'train', 'policies'),
    owns=True,
)
_EVALUATE = FileAccess(
    writes=r'evaluations\.jsonl|learning_curve\.png|evaluation\.png|videos/.*|summaries/evaluate/.*|DONE'
    rf'|status/evaluate\.json|train/stop_request\.json|policies/evaluated_policy/.*|{_MARKS}',
    follows=r'policies/.*|train/result\.json',
    restores=rf'evaluations\.jsonl|learning_curve\.png|DONE|train/stop_request\.json|policies/evaluated_policy/.*|{_MARKS}',
    folders=('train', 'policies'),
)
_LAUNCH = FileAccess(
    writes=r'logs/.*|commands\.txt|status/launch\.json',
    follows=r'status/.*|DONE|train/result\.json|train/checkpoints/checkpoint',
    restores=r'status/launch\.json|replay/(?:\d+/)?tables\.json',
    folders=('', 'status', 'train'),
)
_EXPORT = FileAccess(writes=rf'(?!{_MARKS}$)(?:products|converted|policies)/.*', restores=r'policies/.*')
_ROLES = {
    'train': _TRAIN,
    'synchronous': _TRAIN,
    'train_offline': _TRAIN,
    'evaluate': _EVALUATE,
    'evaluate_policy': FileAccess(writes=r'policy_evaluations/.*', restores=r'policies/.*|DONE'),
    'launch': _LAUNCH,
    'serve': FileAccess(writes=r'status/serve\.json|serving/.*', follows=r'policies/.*', folders=('policies',)),
    'export': _EXPORT,
    'export_int8': dataclasses.replace(_EXPORT, restores=r'policies/.*|replay/checkpoints/.*|replay/tables\.json'),
    'watch': FileAccess(follows=r'status/.*|DONE|failure\.json', folders=('', 'status')),
    'run_metrics': FileAccess(follows=r'status/.*', folders=('status',)),
    'doctor': FileAccess(restores=r'summaries/.*|status/.*|evaluations\.jsonl|DONE|config\.gin'),
}


def role(job: str, name: str = '') -> FileAccess:
    """Returns a job's role.

    Args:
      job: the job's kind, such as 'collect'.
      name: the name of its status file, such as 'collect_0' or 'replay_server_1'.
    """
    status = rf'status/{re.escape(name or job)}\.json'
    if job == 'coordinator':  # or a relay
        return FileAccess(writes=status)
    if job == 'collect':
        return FileAccess(writes=status, follows='DONE', folders=('',))
    if job == 'replay_server':
        shard = name.rpartition('_')[2]
        mine = rf'replay/{shard}/.*' if shard.isdecimal() else r'replay/(?!\d+/).*'
        return FileAccess(rf'{mine}|{status}', 'DONE', rf'{mine}|replay/(?:\d+/)?tables\.json', ('',), owns=True)
    return _ROLES[job]
