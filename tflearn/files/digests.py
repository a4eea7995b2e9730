"""SHA-256 digests of the files of an exported model:
recorded when it is published, checked before it is loaded.

A SavedModel is a program. The digests show that it is still the one that was exported: they find
damage, and changes by whoever cannot change the record too. Where the environment variable
TFLEARN_MODEL_KEY names a file with a key (or env:NAME), the record is signed with it (HMAC-SHA-256,
RFC 2104), and models without a valid signature are refused.
"""

import contextlib
import errno
import hashlib
import hmac
import json
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator
from typing import Any, NotRequired, TypedDict

from absl import logging

from tflearn.core import forms, tokens
from tflearn.core.errors import UserOSError, UserValueError
from tflearn.files.run_dir import is_inside

RECORD = 'digests.json'
KEY_VARIABLE = 'TFLEARN_MODEL_KEY'
_FILES, _SIGNATURE = 'sha256', 'hmac_sha256'
_NEED = 'need the digests of the export'
# What TensorFlow reads of a SavedModel; others, such as an evaluation's marks, may be added to it.
_LOADED = ('saved_model.', 'variables/', 'assets/')


class _Recorded(TypedDict):
    sha256: dict[str, str]
    hmac_sha256: NotRequired[str]


def record(model: pathlib.Path, changing: tuple[str, ...] = ()) -> None:
    """Writes the digests of all files of a model beside them.

    Args:
      model: the model's directory.
      changing: names of files in it that may change later.
    """
    names = [file.relative_to(model).as_posix() for file in model.rglob('*') if file.is_file()]
    files = {name: file_digest(model / name) for name in sorted(names) if name not in (RECORD, *changing)}
    recorded: dict[str, Any] = {_FILES: files}
    if key := _key():
        recorded[_SIGNATURE] = _signature(files, key)
    (model / RECORD).write_text(json.dumps(recorded, indent=2) + '\n', encoding='utf-8')


@contextlib.contextmanager
def checked(model: pathlib.Path) -> Iterator[pathlib.Path]:
    """Provides a private copy of a model whose files are those that were recorded,
    for the time of the block.

    What is loaded is the copy: the model's own files could be exchanged between the check and the
    load. A model without a record, which another program wrote, is given as it is; that is logged.

    Raises:
      ValueError: if a file differs, is missing or was added, or the record is not signed as
        `TFLEARN_MODEL_KEY` asks.
      OSError: if there is no room for the copy.
    """
    expected = _recorded(model)
    if expected is None:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix='tflearn-model-') as folder:
        copy = pathlib.Path(folder, model.name)
        copy.mkdir()
        for name, digest in expected.items():
            if _copied(model, name, copy) != digest:
                raise UserValueError(
                    f'got another file {model / name} than was exported; need the one with SHA-256 {digest!a:.70}'
                )
        for file in model.rglob('*'):
            name = file.relative_to(model).as_posix()
            if name.startswith(_LOADED) and file.is_file() and name not in expected:
                raise UserValueError(f'got the file {file}, which was not exported; need only those in {RECORD}')
            if name.endswith('.json') and name not in expected:  # what changes later, which is data
                _copied(model, name, copy)
        try:
            yield copy
        except Exception as error:  # its messages name the model
            error.args = tuple(a.replace(str(copy), str(model)) if isinstance(a, str) else a for a in error.args)
            raise


def _recorded(model: pathlib.Path) -> dict[str, str] | None:
    """Returns the recorded digests by name; None if there is no record,
    and no key that asks for one.
    """
    key = _key()
    try:
        recorded = json.loads((model / RECORD).read_text(encoding='utf-8'))
    except FileNotFoundError:
        if key:
            raise UserValueError(f'got {model} without {RECORD}; need a signed one, as {KEY_VARIABLE} is set') from None
        if model.exists():  # not removed meanwhile
            text = '%s has no %s, so its files are not checked: another program wrote it'
            logging.log_first_n(logging.INFO, text, 1, model, RECORD)
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserValueError(f'got a damaged {model / RECORD} ({error}); {_NEED}') from error
    if fault := forms.fault(recorded, _Recorded, '', f'a damaged {model / RECORD}, with '):
        raise UserValueError(f'{fault}; {_NEED}')
    expected, signature = recorded[_FILES], recorded.get(_SIGNATURE, '').encode()
    if wrong := [name for name in expected if not is_inside(name)]:
        raise UserValueError(f'got a damaged {model / RECORD}, with the file {wrong[0]!a:.200}; {_NEED}')
    if key and not hmac.compare_digest(signature, _signature(expected, key).encode()):
        raise UserValueError(
            f'got {model / RECORD} without a signature by the key of {KEY_VARIABLE}; need a signed model'
        )
    return expected


def _copied(model: pathlib.Path, name: str, copy: pathlib.Path) -> str:
    """Copies a file; returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    try:
        if not stat.S_ISREG((model / name).stat().st_mode):  # reading a pipe would not end
            raise UserOSError('it is no file')
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        with (model / name).open('rb') as content, (copy / name).open('xb') as copied:
            while block := content.read(1 << 20):
                digest.update(block)
                copied.write(block)
    except FileNotFoundError as error:
        raise UserValueError(f'got {model} without {name}; need all files that were exported') from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserOSError(
                f'got no room for a private copy of {model} in {tempfile.gettempdir()}; need that; set TMPDIR'
            ) from error
        raise UserValueError(
            f'got the file {name} of {model}, which cannot be read ({error}); need the one that was exported; remove '
            'the version'
        ) from error
    return digest.hexdigest()


def file_digest(file: pathlib.Path) -> str:
    """Returns the SHA-256 of a file's content."""
    with file.open('rb') as content:
        return hashlib.file_digest(content, 'sha256').hexdigest()


def _key() -> str:
    source = os.environ.get(KEY_VARIABLE)
    return tokens.read(source, KEY_VARIABLE) if source else ''


def _signature(files: dict[str, str], key: str) -> str:
    text = json.dumps(files, sort_keys=True)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
