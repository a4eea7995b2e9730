"""The programs: flags, configuration, one call. Installed as `tflearn_scripts`: `python -m tflearn_scripts.train`."""

import os
import sys

from tflearn.errors import UserImportError

from . import preflight

# Here, because a program's own imports are the first to fail on a wrong Python.
try:
    preflight.check()
except UserImportError as error:
    program = os.path.basename(sys.argv[0])
    print(f'{program if program.startswith("tflearn") else "tflearn"}: error: {error}', file=sys.stderr)
    sys.exit(2)
