"""Runs a program as if the folder tflearn/replay/reverb were deleted, and Reverb not installed.

`python tests/testing/no_backend.py MODULE ARGUMENTS`; the module `names` imports all that `import tflearn` gives,
and the learner, which may take its batches from feed workers.
"""

import importlib.abc
import runpy
import sys

BLOCKED = ('reverb', 'tflearn.replay.reverb')


class _Finder(importlib.abc.MetaPathFinder):
    """Refuses the blocked modules before any other finder sees them."""

    def find_spec(self, fullname, path=None, target=None):
        if any(f'{fullname}.'.startswith(f'{name}.') for name in BLOCKED):
            raise ModuleNotFoundError(f'No module named {fullname!r}: it is blocked', name=fullname)


def main():
    sys.meta_path.insert(0, _Finder())
    # A fork of a process that had loaded them loads all of tflearn again.
    for name in [name for name in sys.modules if name.partition('.')[0] in ('tflearn', 'scripts', 'reverb')]:
        del sys.modules[name]
    del sys.argv[0]
    if sys.argv[0] == 'names':
        import tflearn
        import tflearn.jobs.train

        sys.stdout.write(f'{len([getattr(tflearn, name) for name in tflearn.__all__])} names\n')
        return
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
