"""What a search has found: the best trial as a gin file, a table of all trials, and a picture."""

import io
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tflearn.files.run_dir import RunDir, write_atomically
from tflearn.launch.reports import count

if TYPE_CHECKING:
    import optuna


def ranked(study: 'optuna.Study') -> 'list[optuna.trial.FrozenTrial]':
    """Returns the trials that have a score, the best one first.

    Those that reached the target come first, by their environment steps; equally fast ones, and
    the others, by their score.
    """
    return [trial for trial in _ordered(study) if trial.state.name == 'COMPLETE']


def result(trial: 'optuna.trial.FrozenTrial') -> str:
    """Returns what a trial is ranked by: 'score 475.2', or 'score 500,
    the target after 41,000 environment steps'.
    """
    text = f'score {_score(trial):.4g}'
    if trial.user_attrs.get('reached_target'):
        text += f', the target after {count(trial.user_attrs["env_steps"])} environment steps'
    return text


def _ordered(study: 'optuna.Study') -> 'list[optuna.trial.FrozenTrial]':
    """Returns all trials, those that have ended by themselves before those that were pruned."""

    def key(trial: 'optuna.trial.FrozenTrial') -> tuple[int, float, float]:
        reached = trial.user_attrs.get('reached_target')
        steps = (reached and trial.user_attrs.get('env_steps')) or np.inf
        score = _sign(study) * _score(trial) if trial.values else np.inf  # a failed one
        return trial.state.value, steps, score

    return sorted(study.get_trials(), key=key)


def write(study: 'optuna.Study', root: pathlib.Path, metric: str) -> None:
    """Writes best.gin, tuning.md and tuning.png, as soon as there is a score."""
    if found := ranked(study):
        write_gin_file(study, found[0], root, root / 'best.gin', metric)
        write_atomically(root / 'tuning.md', _table(study, metric))
        _draw(study, root / 'tuning.png', metric)


def write_gin_file(
    study: 'optuna.Study', trial: 'optuna.trial.FrozenTrial', root: pathlib.Path, path: pathlib.Path, metric: str
) -> None:
    """Writes all settings of a trial's run, but for its seeds,
    as a gin file that runs by itself.
    """
    config = RunDir(root / f'trial_{trial.number}').config.read_text(encoding='utf-8').splitlines()
    about = f'# Trial {trial.number} of {len(study.trials)}, with its own seed: {result(trial)} ({metric}).'
    without_seeds = [line for line in config if '.seed = ' not in line]
    write_atomically(path, '\n'.join([about, '', *without_seeds]) + '\n')


def _sign(study: 'optuna.Study') -> int:
    return 1 if study.direction.name == 'MINIMIZE' else -1


def _score(trial: 'optuna.trial.FrozenTrial') -> float:
    return float(trial.values[0])


def _table(study: 'optuna.Study', metric: str) -> str:
    names = list(dict.fromkeys(name for trial in study.trials for name in trial.params))
    lines = [
        f'| trial | | score ({metric}) | environment steps | {" | ".join(names)} |',
        '|---' * (4 + len(names)) + '|',
    ]
    for trial in _ordered(study):
        params = [trial.params.get(name, '') for name in names]
        texts = [f'{value:.4g}' if isinstance(value, float) else f'{value}' for value in params]
        score = f'{_score(trial):.4g}' if trial.values else ''
        steps = trial.user_attrs.get('env_steps') or ''
        state = 'failed' if 'failed' in trial.user_attrs else trial.state.name.lower()
        state = 'above a limit' if any(excess > 0 for excess in trial.constraints.values()) else state
        lines.append(f'| {trial.number} | {state} | {score} | {steps} | {" | ".join(texts)} |')
    return '\n'.join([*lines, '', '![trials and importances](tuning.png)', ''])


def _importances(study: 'optuna.Study') -> Mapping[str, float]:
    """Returns how much of the score's variance each parameter explains, the greatest last;
    none from too few trials.
    """
    import optuna

    if len({_score(trial) for trial in ranked(study)}) < 2:
        return {}
    return dict(reversed(optuna.importance.get_param_importances(study).items()))


def _draw(study: 'optuna.Study', path: pathlib.Path, metric: str) -> None:
    # Imported here, since it takes a second. pyplot has global state and needs a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), dpi=100, layout='constrained')
    history, bars = figure.subplots(1, 2)
    done = sorted(ranked(study), key=lambda trial: trial.number)
    numbers, scores = [trial.number for trial in done], [_score(trial) for trial in done]
    so_far = _sign(study) * np.minimum.accumulate(_sign(study) * np.array(scores))
    history.plot(numbers, scores, 'o', label='score of a trial')
    history.step(numbers, so_far, where='post', label='best so far')
    pruned = [trial for trial in study.trials if trial.state.name == 'PRUNED' and trial.intermediate_values]
    last = [list(trial.intermediate_values.values())[-1] for trial in pruned]
    history.plot([trial.number for trial in pruned], last, 'x', color='0.5', label='pruned there')
    history.set_xlabel('trial')
    history.set_ylabel(metric.replace('_', ' '))
    history.locator_params(axis='x', integer=True)
    history.legend(loc='best', frameon=False)
    importances = _importances(study)
    bars.barh([name.split('.', 1)[-1] for name in importances], list(importances.values()))
    bars.set_xlabel("share of the score's variance")
    bars.set_ylabel('hyperparameter')
    for axes in (history, bars):
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    png = io.BytesIO()
    figure.savefig(png, format='png')
    write_atomically(path, png.getvalue())
