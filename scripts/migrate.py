"""Rewrites the names of version 0.1 in gin files, and prints what it changed.

tflearn-migrate FILE.gin writes FILE.gin.new; with --in_place it writes FILE.gin and keeps the old one as FILE.gin.orig.
"""

import pathlib
import sys

from absl import flags

from tflearn.config import migrate
from tflearn.errors import UserError, UserValueError
from tflearn.run_dir import write_atomically


def rewrite(path: pathlib.Path, in_place: bool) -> None:
    """Rewrites one gin file."""
    text, changes = migrate.migrate(path)
    print('\n'.join(changes) or f'{path}: nothing to change')
    for other in migrate.others_to_migrate(path):
        print(f'{path} includes {other}, which has names of version 0.1 too: run tflearn-migrate {other}')
    if changes:
        if in_place:
            write_atomically(path.with_name(f'{path.name}.orig'), path.read_text(encoding='utf-8'))
        written = path if in_place else path.with_name(f'{path.name}.new')
        write_atomically(written, text)
        print(f'wrote {written}')


def main() -> None:
    """Runs the program."""
    flags.DEFINE_bool('in_place', False, 'Writes FILE.gin itself, and keeps the old one as FILE.gin.orig.')
    flags.DEFINE_bool('help', False, 'Shows this.')
    try:
        try:
            files = flags.FLAGS(sys.argv)[1:]
        except flags.Error as error:
            raise UserValueError(f'got a wrong flag: {" ".join(str(error).split())}; see --help') from error
        if flags.FLAGS.help:
            print(f'tflearn-migrate: {__doc__}\nFlags:\n\n  --in_place\n      {flags.FLAGS["in_place"].help}')
            return
        if not files:
            raise UserValueError('got no file; need the path of a gin file; see --help')
        for file in files:
            rewrite(pathlib.Path(file), flags.FLAGS.in_place)
    except UserError as error:
        print(f'tflearn-migrate: error: {error}', file=sys.stderr)
        sys.exit(2)


if __name__ == '__main__':
    main()
