"""Runs a gin file once for each seed, and compares the runs: tflearn-seeds --gin_file=dqn_cartpole --root_dir=runs/dqn.

The run of seed 3 is in ROOT_DIR/seed_3. The same command continues what was stopped, and starts failed seeds again. At
the end there are comparison.md, comparison.png and comparison.csv in ROOT_DIR; tflearn-compare shows several such
folders beside each other.
"""

import pathlib
import sys

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-seeds', __doc__, _run, ('seeds',), required=('gin_file', 'root_dir'))


def _run(switches: flags.FlagValues) -> int:
    from tflearn.extensions.experiments import runs

    root = pathlib.Path(switches.root_dir)
    numbers = range(switches.first_seed, switches.first_seed + switches.seeds)
    given = switches.parallel, switches.gin_bindings, switches.mode
    codes = runs.run_seeds(root, switches.gin_file, numbers, sys.stdout, *given)
    failed = {seed: code for seed, code in codes.items() if code}
    if not set(codes.values()) & {0}:
        return next(iter(failed.values())) & 0xFF
    from tflearn.extensions.experiments import comparison

    found = comparison.compare(str(root))
    comparison.write(found, root)
    print(f'\n{found}\n\nlearning curves: {root / "comparison.png"}')
    return 1 if failed else 0


if __name__ == '__main__':
    main()
