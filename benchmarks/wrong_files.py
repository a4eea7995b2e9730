"""Half-valid message files, as `wrong_messages` makes them: what their readers answer.

A reader takes the file, or refuses it in one line with the names of the file and of the field; or it does as if there
were no file. `tests/wrong_files_test.py` has the readers.
"""

import pathlib
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks import wrong_messages
from tflearn.core.errors import UserError

_MOST_SECS = 5.0  # of one file, on a machine that does other work


def faults(
    path: pathlib.Path,
    good: Any,
    read: Callable[[], object],
    count: int,
    seed: int,
    encode: Callable[[Any], bytes] = wrong_messages.encoded,
    named: bool = True,
) -> tuple[list[str], Counter]:
    """Writes so many files and reads them. Returns what was wrong, and how many were read and refused.

    Args:
      path: of the file. It is there, and valid, when `read` is called for the first time.
      good: what it holds: JSON.
      read: reads it, as a program does.
      encode: writes it, if it is no JSON.
      named: whether a refusal names the field.
    """
    chance, found, counts = random.Random(seed), [], Counter[str]()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(good) + b'\n')
    read()
    for _ in range(count):
        made = wrong_messages.changed(good, chance)
        fields, content = (*made.fields[:1], *made.added), encode(made.value) + b'\n'
        if chance.random() < 0.2:
            fields, content = (), wrong_messages.damaged(content, chance)
        path.write_bytes(content)
        begun = time.monotonic()
        try:
            read()
            counts['read'] += 1
        except UserError as error:
            counts['refused'] += 1
            text = str(error)
            if '\n' in text or len(text) > 1_000 or not any(name in text for name in (path.name, str(path.parent))):
                found.append(f'{made.what}: refused by {text[:300]!r}')
            elif named and fields and 'cannot be read (' not in text and not wrong_messages.names(text, fields):
                found.append(f'{made.what}: not named in {text[:300]!r}')
        except Exception as error:
            found.append(f'{made.what if fields else content[:80]!r}: {type(error).__name__}: {error!s:.200}')
        if time.monotonic() - begun > _MOST_SECS:
            found.append(f'{made.what}: took {time.monotonic() - begun:.1f} s')
    return found, counts
