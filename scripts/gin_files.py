"""Finds a run's gin file: by path, or by name among the packaged ones. Needs neither gin nor TensorFlow."""

import difflib
import pathlib

_HERE = pathlib.Path(__file__).resolve().parent


def folder() -> pathlib.Path:
    """The packaged gin files' folder, beside this one's: `gin` in a checkout, `tflearn_gin` where it is installed."""
    return _HERE.with_name('gin' if _HERE.name == 'scripts' else 'tflearn_gin')


def names() -> list[str]:
    """The names of the packaged gin files, without their ending: 'dqn_cartpole', 'algorithms/dqn', ..."""
    root = folder()
    return sorted(path.relative_to(root).with_suffix('').as_posix() for path in root.rglob('*.gin'))


def resolve(name: str) -> pathlib.Path:
    """Finds a gin file.

    Args:
      name: a path, or the name of a packaged file with or without '.gin'. A path that exists comes first.

    Returns:
      The file's absolute path.

    Raises:
      ValueError: if there is none; it names those that come near and those that there are.
    """
    path = pathlib.Path(name).expanduser()
    for candidate in (path, folder() / name, folder() / f'{name}.gin'):
        if candidate.is_file():
            return candidate.absolute()
    there_are = names()
    wanted = path.name.removesuffix('.gin')
    by_last_part = {there_is.rpartition('/')[2]: there_is for there_is in reversed(there_are)}
    near = [by_last_part[part] for part in difflib.get_close_matches(wanted, by_last_part, n=3)]
    advice = f'did you mean {" or ".join(near)}?' if near else 'choose one of them or give the path of your own'
    packaged = ', '.join(there_are) or 'the packaged ones, of which there are none here'
    raise ValueError(f'got gin_file={name!r}; need the path of a file, or one of {packaged}; {advice}')
