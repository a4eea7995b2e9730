"""Runs a program as if packages were not installed: `python -m tests.testing.without PACKAGES MODULE ARGUMENTS`.

PACKAGES are separated by commas; MODULE may be the path of a file that ends in `.py`. The module `names` imports all
that `import tflearn` gives, and the learner, which may take its batches from feed workers.
"""

import importlib.machinery
import runpy
import sys

# Reverb, and the folder of its backend.
REVERB = 'reverb,tflearn.replay.reverb'


class _Finder:
    """Finds what all others find, but for the packages."""

    find_distributions = staticmethod(importlib.machinery.PathFinder.find_distributions)

    def __init__(self, packages):
        self._hidden, self._others = tuple(f'{name}.' for name in packages), [*sys.meta_path]

    def find_spec(self, name, path=None, target=None):
        if f'{name}.'.startswith(self._hidden):
            return None
        return next(filter(None, (each.find_spec(name, path, target) for each in self._others)), None)


def main():
    packages = sys.argv.pop(1).split(',')
    sys.meta_path[:] = [_Finder(packages)]
    # A fork of a process that had loaded them loads all of tflearn again.
    tops = {'tflearn', 'scripts', *(name.partition('.')[0] for name in packages)}
    for name in [name for name in sys.modules if name.partition('.')[0] in tops]:
        del sys.modules[name]
    del sys.argv[0]
    if sys.argv[0] == 'names':
        import tflearn
        import tflearn.jobs.train

        sys.stdout.write(f'{len([getattr(tflearn, name) for name in tflearn.__all__])} names\n')
    elif sys.argv[0].endswith('.py'):
        runpy.run_path(sys.argv[0], run_name='__main__')
    else:
        runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
