"""The learning curve: a plot of evaluations."""

import contextlib
import functools
import io
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tflearn.files.run_dir import write_atomically

Evaluation = Mapping[str, Any]

_MOST_MARKERS = 60
_drawing = threading.Lock()


def draw(
    path: pathlib.Path,
    curves: Mapping[str, Sequence[Evaluation]],
    title: str = '',
    target_return: float | None = None,
) -> None:
    """Plots mean returns against environment steps,
    with train steps at the upper edge of a single curve.

    The file is written atomically. A single curve has a band: the middle half of its episodes'
    returns. Without any evaluation nothing is plotted.

    Args:
      curves: label (a run, a seed) -> evaluations: train_step, env_steps (None if unknown),
        mean_return, returns.
      target_return: a return that is plotted as a horizontal line; None plots none.
    """
    curves = {label: current(evaluations) for label, evaluations in curves.items() if evaluations}
    if not curves:
        return
    with image(path) as axes:
        _plot(axes, curves)
        if target_return is not None:
            axes.axhline(target_return, color='0.35', linestyle='--', linewidth=1, label=f'target {target_return:g}')
        axes.set_ylabel('return')
        if len(curves) == 1:
            _add_train_steps(axes, next(iter(curves.values())))
        axes.set_title(title)


@contextlib.contextmanager
def image(path: pathlib.Path) -> Iterator[Any]:
    """Makes the axes of a plot (matplotlib's `Axes`), and writes it to a PNG file, atomically,
    after the block.
    """
    from matplotlib.ticker import StrMethodFormatter

    with _drawing, io.BytesIO() as png:
        canvas = _canvas()
        canvas.figure.clear()
        axes = canvas.figure.add_subplot()
        yield axes
        axes.grid(alpha=0.3)
        axes.spines[['right']].set_visible(False)
        axes.legend(loc='best', frameon=False)
        axes.locator_params(axis='x', nbins=6, steps=[1, 2, 5, 10])
        axes.xaxis.set_major_formatter(StrMethodFormatter('{x:,.10g}'))
        canvas.print_png(png)
        write_atomically(path, png.getvalue())


@functools.cache
def _canvas() -> Any:
    """Returns the canvas of all plots: each figure would take its memory until the next garbage collection."""
    # Imported here, since it takes a second. pyplot has global state and needs a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(figsize=(8, 5), dpi=120, layout='constrained'))


def current(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Removes evaluations of steps that were trained again after an older checkpoint was restored.

    Returns:
      Those that no evaluation of the same or an earlier train step follows, in ascending order of
      train steps.
    """
    kept: list[Evaluation] = []
    for evaluation in reversed(evaluations):
        if not kept or evaluation['train_step'] < kept[-1]['train_step']:
            kept.append(evaluation)
    return kept[::-1]


def _plot(axes: Any, curves: Mapping[str, Sequence[Evaluation]]) -> None:
    known = all(evaluation['env_steps'] is not None for curve in curves.values() for evaluation in curve)
    steps = 'env_steps' if known else 'train_step'
    axes.set_xlabel('environment steps' if known else 'train steps')
    for label, curve in curves.items():
        x = [evaluation[steps] for evaluation in curve]
        means = [evaluation['mean_return'] for evaluation in curve]
        marker = '.' if len(curve) <= _MOST_MARKERS else None
        (line,) = axes.plot(x, means, marker=marker, markersize=5, linewidth=1.5, label=label)
        if len(curves) == 1:
            low, high = np.array([np.quantile(evaluation['returns'], (0.25, 0.75)) for evaluation in curve]).T
            axes.fill_between(
                x, low, high, color=line.get_color(), alpha=0.2, linewidth=0, label='middle half of the episodes'
            )


def _add_train_steps(axes: Any, curve: Sequence[Evaluation]) -> None:
    """Labels the upper edge with train steps, which follow the environment steps of `curve`."""
    env_steps = [evaluation['env_steps'] for evaluation in curve]
    if len(curve) < 2 or None in env_steps:
        return
    from matplotlib.ticker import MaxNLocator

    train_steps = [evaluation['train_step'] for evaluation in curve]
    ticks = MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]).tick_values(train_steps[0], train_steps[-1])
    ticks = [tick for tick in ticks if train_steps[0] <= tick <= train_steps[-1]]
    above = axes.twiny()
    above.set_xlim(axes.get_xlim())
    above.set_xticks(np.interp(ticks, train_steps, env_steps), [f'{tick:,.0f}' for tick in ticks])
    above.set_xlabel('train steps')
    above.spines[['right']].set_visible(False)
