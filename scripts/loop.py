"""Turns a product's log into its next policies, round by round: tflearn-loop --root_dir=DIR --gin_file=FILE.

The gin file binds the arguments of tflearn.extensions.product.loop.loop. A round joins decisions with outcomes, holds a
part out, trains on the rest, and promotes the new policy if it proves itself on the part. The same command goes on with
what was stopped or killed. The rounds are in ROOT_DIR/rounds, and on a page, ROOT_DIR/index.html.
"""

import sys

from absl import flags

from tflearn.files.run_dir import local_path

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-loop', __doc__, _run, ('loop',), required=('root_dir', 'gin_file'))


def _run(switches: flags.FlagValues) -> int:
    from tflearn.config import files, job_config
    from tflearn.extensions.product import loop

    run = loop.Run(local_path(switches.root_dir, '--root_dir'), str(__package__), switches.once, sys.stdout)
    gin_file = files.resolve(switches.gin_file)
    configured = job_config.configure(loop.loop, {'run': run}, gin_file, switches.gin_bindings)
    return int(configured.run()())


if __name__ == '__main__':
    main()
