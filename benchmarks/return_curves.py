"""A plot of runs of several sides: the mean return of the last episodes against seconds and environment steps."""

import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from benchmarks import recorded_environment


def draw(
    path: pathlib.Path,
    sides: Mapping[str, Iterable[pathlib.Path]],
    goal: float,
    window: int,
    least: int | None = None,
) -> None:
    """Draws every run of every side, those of a side in one colour.

    Args:
      path: the plot's PNG file.
      sides: label -> files that `recorded_environment` wrote, one for each run.
      goal: is drawn as a line.
      window: episodes that a mean is over.
      least: episodes that a run's first means are over; None is `window`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=120, layout='constrained')
    by_secs, by_steps = figure.subplots(1, 2, sharey=True)
    for i, (label, files) in enumerate(sides.items()):
        for j, file in enumerate(files):
            start, episodes = recorded_environment.read(file)
            first = least or window
            if start is None or len(episodes) < first:
                continue
            times, returns, env_steps = np.array(episodes).T
            means = [returns[max(0, end - window) : end].mean() for end in range(first, len(returns) + 1)]
            style = {'color': f'C{i}', 'alpha': 0.8, 'linewidth': 1.2, 'label': None if j else label}
            by_secs.plot(times[first - 1 :] - start, means, **style)
            by_steps.plot(env_steps[first - 1 :], means, **style)
    for axes, name in ((by_secs, 'seconds after start-up'), (by_steps, 'environment steps')):
        axes.axhline(goal, color='0.35', linestyle='--', linewidth=1)
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
        axes.locator_params(axis='x', nbins=6)
        axes.xaxis.set_major_formatter('{x:,.0f}')
    by_secs.set_ylabel(f'mean return of {window} episodes')
    by_secs.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)
