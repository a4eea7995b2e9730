"""The programs: flags, configuration, one call. Installed as `tflearn_scripts`.

`python -m tflearn_scripts.train` is tflearn-train, and `python -m tflearn_scripts compare` is tflearn compare.
"""

import importlib.util
import os
import pathlib
import sys

_PROGRAM = os.path.basename(sys.argv[0])
_NAME = _PROGRAM if _PROGRAM.startswith('tflearn') else 'tflearn'


def _end(error: object) -> None:
    print(f'{_NAME}: error: {error}', file=sys.stderr)
    sys.exit(2)


# Before the first import of the package: another project's has the same name.
_spec = importlib.util.find_spec('tflearn')
_found = pathlib.Path((_spec and _spec.origin) or '(nothing)')
if not (_found.is_file() and 'tflearn-agents' in _found.read_text(encoding='utf-8')):
    _end(
        f'got {_found} as the package tflearn; need that of the distribution tflearn-agents; run '
        '`pip uninstall tflearn`, then install tflearn-agents again'
    )

from tflearn.core import preflight  # noqa: E402
from tflearn.core.errors import UserImportError  # noqa: E402

# Before anything is loaded; `-m` is what Python calls a program until it runs.
if '--version' in sys.argv[1:] and (_NAME == _PROGRAM or _PROGRAM == '-m'):
    print(preflight.versions(_NAME))
    sys.exit()

# Here, because a program's own imports are the first to fail on a wrong Python. The verb track needs no TensorFlow.
try:
    if sys.argv[1:2] != ['track']:
        preflight.check()
except UserImportError as error:
    _end(error)
