"""Searches hyperparameters: tflearn-tune --gin_file=ppo_cartpole --space=ppo --trials=30 --root_dir=runs/tune.

Each trial is a run, in ROOT_DIR/trial_0, trial_1, ...; trials that fall behind are pruned. The same command continues
what was stopped or killed. The best trials run again with fresh seeds. At the end ROOT_DIR has best.gin, which runs as
it is, tuning.md with all trials, tuning.png with the history and the importances, and in best/ runs of best.gin with
seeds that decided nothing, whose score is printed.
"""

import pathlib
import sys

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-tune', __doc__, _run, ('tune',), required=('gin_file', 'root_dir'))


def _run(switches: flags.FlagValues) -> int:
    from tflearn.extensions.experiments import runs, tuning

    root = pathlib.Path(switches.root_dir)
    names = ('gin_file', 'space', 'parallel', 'gin_bindings', 'mode', 'metric', 'lower_is_better')
    given = job_flags.values_of(*names, values=switches)
    methods = (switches.sampler, switches.pruner)
    search = tuning.Tuning(root, num_trials=switches.trials, methods=methods, **given)
    study = search.run(sys.stdout)
    if study is None:
        return runs.INTERRUPTED
    print(f'\nall trials: {root / "tuning.md"}', flush=True)
    if switches.seeds:
        found = tuning.run_finals(search, study, switches.finalists, switches.seeds, sys.stdout)
        if found is None:
            return 1
        print(f'\nfresh seeds: {found}')
    print(f'\nthe best settings: {root / "best.gin"}')
    return 0


if __name__ == '__main__':
    main()
