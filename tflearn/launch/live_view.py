"""The live view of a run in a terminal."""

import io
import itertools
import time
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tflearn.launch.reports import JobReport, PlainView, RunReport, duration, metrics_line

_TWO_COLUMNS_WIDTH, _NOTEBOOK_WIDTH = 80, 120
# A notebook is light or dark, and does not say which: these can be read on both.
_RED, _GREEN, _YELLOW, _CYAN, _GREY = (220, 60, 60), (28, 136, 62), (158, 112, 0), (0, 131, 143), (127, 127, 127)
_NOTEBOOK_THEME = TerminalTheme(
    background=(255, 255, 255),
    foreground=(0, 0, 0),
    normal=[_GREY, _RED, _GREEN, _YELLOW, _GREY, _GREY, _CYAN, _GREY],
)
# Where the page is narrow, the view scrolls, not the page.
_NOTEBOOK_FORMAT = '<pre style="line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'
_COLOURS = {
    'running': 'green',
    'finished': 'cyan',
    'stopped': 'cyan',
    'died': 'bold red',
    'waiting': 'yellow',
    'starting': 'yellow',
    'stopping': 'yellow',
}


class LiveView(PlainView):
    """Draws the run in place, below the events. `close` removes the drawing."""

    def __init__(self, title: str, out: TextIO):
        super().__init__(out)
        self._title = title
        self._console = Console(file=out, highlight=False)
        # Only `show` draws, so no thread is needed.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def open(self) -> None:
        """Begins to draw at the lower end of the terminal."""
        self._live.start()

    def close(self) -> None:
        """Removes the drawing."""
        self._live.stop()

    def event(self, text: str) -> None:
        """Writes what happened above the view; further lines of `text` are dimmed."""
        first, *more = text.splitlines()
        self._console.print(Text.assemble((f'{time.strftime("%T")} ', 'dim'), first))
        for line in more:
            self._console.print(Text(f'    {line}', style='dim'))

    def show(self, report: RunReport) -> None:
        """Draws the run."""
        self._live.update(draw(self._title, report, self._console.width), refresh=True)


class NotebookView(PlainView):
    """Draws the run in the output of a notebook's cell, again and again in one place;
    events are lines.
    """

    def __init__(self, title: str, out: TextIO):
        super().__init__(out)
        self._title = title
        self._handle: Any = None

    def show(self, report: RunReport) -> None:
        """Draws the run."""
        from IPython import display  # it is where a notebook is

        console = Console(record=True, file=io.StringIO(), width=_NOTEBOOK_WIDTH, force_jupyter=False, highlight=False)
        console.print(draw(self._title, report, _NOTEBOOK_WIDTH))
        html = console.export_html(theme=_NOTEBOOK_THEME, inline_styles=True, code_format=_NOTEBOOK_FORMAT)
        data = {'text/html': html, 'text/plain': metrics_line(report)}
        if self._handle is None:
            self._handle = display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def draw(title: str, report: RunReport, width: int) -> RenderableType:
    """Returns the view, `width` characters wide: the run's progress, its metrics, its jobs."""
    head = Text.assemble(('tflearn', 'bold cyan'), f'  {title}  ', (duration(report.secs), 'dim'))
    parts = [part for part in (head, _progress(report), _metrics(report, width), _jobs(report)) if part is not None]
    return Group(*itertools.chain.from_iterable(('', part) for part in parts))


def _progress(report: RunReport) -> RenderableType:
    if report.progress is None:
        return Text('no train step yet', style='dim')
    step, total = report.progress
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    left = '' if report.secs_left is None else f'{duration(report.secs_left)} left'
    bar = ProgressBar(total=total, completed=min(step, total))
    row.add_row('train', bar, Text.assemble((f'{step / total:.0%}', 'bold'), f'  {left}'))
    return row


def _metrics(report: RunReport, width: int) -> RenderableType | None:
    """Returns labels and metrics in two columns of pairs, as wide as they usually become,
    so that nothing jumps.
    """
    metrics = report.metrics()
    metrics.pop('time left', None)  # It is beside the bar.
    if not metrics:
        return None
    grid = Table.grid(padding=(0, 2))
    cells = [Text.assemble((f'{label:<16}', 'dim'), (f'{text:<24}', 'bold')) for label, text in metrics.items()]
    columns = 2 if width >= _TWO_COLUMNS_WIDTH else 1
    for first in range(0, len(cells), columns):
        grid.add_row(*cells[first : first + columns])
    return grid


def _jobs(report: RunReport) -> RenderableType:
    width = max(len(job.name) for job in report.jobs)
    lines = [Text.assemble(f'{job.name:<{width}}  ', _state(job)) for job in report.jobs]
    return Text('\n', no_wrap=True, overflow='ellipsis').join(lines)


def _state(job: JobReport) -> Text:
    colour = _COLOURS.get(job.state.split(' ', 1)[0], 'yellow')
    state = Text.assemble(('● ', colour), f'{job.state:<8}')
    if job.restarts:
        state.append(f'  restarts {job.restarts}', style='yellow')
    if job.silent_secs is not None:
        state.append(f'  silent for {duration(job.silent_secs)}', style='yellow')
    return state.append(f'  {job.summary()}', style='dim')
