"""Errors that all factories share: what to install, which name was meant, how many environments there can be."""

import difflib
from collections.abc import Iterable

from tflearn import extras
from tflearn.errors import UserValueError


def missing(name: str, error: BaseException) -> UserValueError:
    """Returns the error to raise, in one line, where making the environment `name` raised `error`.

    gymnasium's own message is about the module; its cause names it.
    """
    cause = error if isinstance(error, ImportError) else error.__cause__
    module = (getattr(cause, 'name', None) or '').partition('.')[0]
    remedy = extras.install_command(module) or f'install it ({error})'
    return UserValueError(f'got name={name!r}, which needs {module or "a package"}; need that installed; {remedy}')


def unknown(argument: str, name: str, known: Iterable[str], what: str) -> UserValueError:
    """Returns the error to raise where `name`, with or without 'module:', is not among the `known` names of `what`."""
    by_lower_case = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.rpartition(':')[2].lower(), by_lower_case, n=3, cutoff=0.5)
    nearest = ', '.join(by_lower_case[other] for other in near)
    return UserValueError(f'got {argument}={name!r}; need {what}; nearest: {nearest or "none"}')


def check_num_environments(num_environments: int) -> None:
    """Checks the size of a batch.

    Raises:
      ValueError: if it is below 1.
    """
    if num_environments < 1:
        raise UserValueError(f'got num_environments={num_environments}; need at least 1')
