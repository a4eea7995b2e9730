"""Makes Reverb impossible to import in a process that has this folder in PYTHONPATH."""

import importlib.abc
import sys


class _NoReverb(importlib.abc.MetaPathFinder):
    """Refuses Reverb before any other finder sees it."""

    def find_spec(self, fullname, path, target=None):
        if fullname.partition('.')[0] == 'reverb':
            raise ModuleNotFoundError('No module named reverb: it is blocked', name='reverb')


sys.meta_path.insert(0, _NoReverb())
