"""Rewrites the names of version 0.1 in gin files, and prints what it changed.

tflearn-migrate FILE.gin writes FILE.gin.new; with --in_place it writes FILE.gin and keeps the old one as FILE.gin.orig.
"""

import pathlib
from collections.abc import Mapping

from absl import flags

from tflearn.config import migrate
from tflearn.run_dir import write_atomically

from . import file_program


def rewrite(files: list[str], switches: Mapping[str, bool]) -> int:
    """Rewrites gin files; returns the exit status."""
    for path in map(pathlib.Path, files):
        text, changes = migrate.migrate(path)
        print('\n'.join(changes) or f'{path}: nothing to change')
        for other in migrate.others_to_migrate(path):
            print(f'{path} includes {other}, which has names of version 0.1 too: run tflearn-migrate {other}')
        if changes:
            if switches['in_place']:
                write_atomically(path.with_name(f'{path.name}.orig'), path.read_text(encoding='utf-8'))
            written = path if switches['in_place'] else path.with_name(f'{path.name}.new')
            write_atomically(written, text)
            print(f'wrote {written}')
    return 0


def main() -> None:
    """Runs the program."""
    switches = flags.FlagValues()
    meaning = 'Writes FILE.gin itself, and keeps the old one as FILE.gin.orig.'
    flags.DEFINE_bool('in_place', False, meaning, flag_values=switches)
    file_program.run('tflearn-migrate', __doc__ or '', switches, 'the path of a gin file', rewrite)


if __name__ == '__main__':
    main()
