"""The end of a search: its best trials run again with fresh seeds, and the best of these with others still.

A trial has one seed, and the best of many trials was often lucky.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from tflearn.experiments import comparison, seeds, trial_report
from tflearn.experiments.comparison import Comparison
from tflearn.files.run_dir import local_path

if TYPE_CHECKING:
    import optuna

    from tflearn.experiments.tuning import Tuning

# Trials have their numbers as seeds.
_CHOOSING, _SCORING = 100_000, 200_000


def run(tuning: 'Tuning', study: 'optuna.Study', num_finalists: int, num_seeds: int, out: TextIO) -> Comparison | None:
    """Chooses among the best trials by runs with fresh seeds, writes best.gin, and scores it with other seeds.

    Returns:
      The runs of best.gin; None if a run was stopped or failed. The same call continues what was stopped.
    """
    root = local_path(tuning.root_dir, '--root_dir')
    finalists = trial_report.ranked(study)[:num_finalists]
    if len(finalists) > 1:
        folders = [root / 'finalists' / f'trial_{trial.number}' for trial in finalists]
        for trial, folder in zip(finalists, folders, strict=True):
            trial_report.write_gin_file(study, trial, root, folder.with_suffix('.gin'), tuning.metric)
            if not _all_ended(tuning, folder, folder.with_suffix('.gin'), range(_CHOOSING, _CHOOSING + num_seeds), out):
                return None
        found = _compared(tuning, folders, root / 'finalists')
        print(f'\nfinalists: {found}\n', file=out, flush=True)
        sign = -1 if tuning.lower_is_better else 1
        keys = [(sign * row.score[0], sign * row.area) for row in found.rows()]
        trial_report.write_gin_file(study, finalists[keys.index(max(keys))], root, root / 'best.gin', tuning.metric)
    else:
        print(f'\nfinalists: trial {finalists[0].number} alone; no fresh seeds choose', file=out, flush=True)
    if not _all_ended(tuning, root / 'best', root / 'best.gin', range(_SCORING, _SCORING + num_seeds), out):
        return None
    return _compared(tuning, [root / 'best'], root / 'best')


def _all_ended(
    tuning: 'Tuning', folder: pathlib.Path, gin_file: pathlib.Path, numbers: Sequence[int], out: TextIO
) -> bool:
    print(f'{len(numbers)} seeds of {gin_file}:', file=out, flush=True)
    its = seeds.Seeds(folder, str(gin_file), numbers, tuning.parallel, (), tuning.mode)
    return not any(its.run(out).values())


def _compared(tuning: 'Tuning', folders: Sequence[pathlib.Path], output: pathlib.Path) -> Comparison:
    found = comparison.compare(*folders, metric=tuning.metric, lower_is_better=tuning.lower_is_better)
    comparison.write(found, output)
    return found
