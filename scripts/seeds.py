"""Runs a gin file once for each seed, and compares the runs: tflearn-seeds --gin_file=dqn_cartpole --root_dir=runs/dqn.

The run of seed 3 is in ROOT_DIR/seed_3. The same command continues what was stopped, and starts failed seeds again. At
the end there are comparison.md, comparison.png and comparison.csv in ROOT_DIR; tflearn-compare shows several such
folders beside each other.
"""

import pathlib
import sys

from absl import flags

from . import job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-seeds', __doc__, _define, _run, required=('gin_file', 'root_dir'))


def _define(switches: flags.FlagValues) -> None:
    flags.DEFINE_string('gin_file', None, 'A path, or the name of a packaged gin file. Required.', flag_values=switches)
    flags.DEFINE_string('root_dir', None, 'The folder of the runs. Required.', flag_values=switches)
    flags.DEFINE_integer('seeds', 5, 'How many seeds.', 1, flag_values=switches)
    flags.DEFINE_integer('first_seed', 1, 'The first seed; the others follow it.', 0, flag_values=switches)
    flags.DEFINE_integer('parallel', 1, 'How many runs at the same time.', 1, flag_values=switches)
    flags.DEFINE_multi_string('gin_bindings', [], 'Gin statements, as those of tflearn-launch.', flag_values=switches)
    modes = ['processes', 'synchronous']
    help = 'processes: as tflearn-launch; synchronous: each run in one process, and repeatable.'
    flags.DEFINE_enum('mode', modes[0], modes, help, flag_values=switches)


def _run(switches: flags.FlagValues) -> int:
    from tflearn.experiments import seeds

    root = pathlib.Path(switches.root_dir)
    numbers = range(switches.first_seed, switches.first_seed + switches.seeds)
    codes = seeds.Seeds(root, switches.gin_file, numbers, switches.parallel, switches.gin_bindings, switches.mode).run(
        sys.stdout
    )
    failed = {seed: code for seed, code in codes.items() if code}
    if not set(codes.values()) & {0}:
        return next(iter(failed.values())) & 0xFF
    preflight.import_quietly('tensorflow')
    from tflearn.experiments import comparison

    found = comparison.compare(str(root))
    comparison.write(found, root)
    print(f'\n{found}\n\nlearning curves: {root / "comparison.png"}')
    return 1 if failed else 0


if __name__ == '__main__':
    main()
