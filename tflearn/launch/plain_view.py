"""The view of a run where there is no terminal: a line for every event and one every ten seconds."""

import time
from typing import TextIO

from tflearn.launch.reports import RunReport, duration

_TOLD_BY_EVENTS = ('stopping', 'stopped', 'died')


class LineView:
    """Writes plain lines, each with the time of day."""

    def __init__(self, out: TextIO, interval_secs: float = 10.0):
        self._out = out
        self._interval_secs = interval_secs
        self._next_secs = interval_secs
        self._logged: set[tuple[str, int, str]] = set()  # states, by name of the job and restarts

    def open(self) -> None:
        """Nothing to set up."""

    def close(self) -> None:
        """Nothing to put back."""

    def event(self, text: str) -> None:
        """Writes what happened; further lines of `text` are indented."""
        first, *more = text.splitlines()
        lines = [f'{time.strftime("%T")} {first}', *(f'    {line}' for line in more)]
        print('\n'.join(lines), file=self._out, flush=True)

    def show(self, report: RunReport) -> None:
        """Writes the states that jobs are in for the first time since their start and, when it is time, the metrics.

        A job that goes from one state to another and back, as `evaluate` does for each policy, gets no line for it.
        """
        restarts = {job.name: job.restarts for job in report.jobs}
        for state, names in report.by_state().items():
            new = [name for name in names if (name, restarts[name], state) not in self._logged]
            self._logged.update((name, restarts[name], state) for name in new)
            if new and state not in _TOLD_BY_EVENTS:
                self.event(f'{", ".join(new)}: {state}')
        if report.secs >= self._next_secs:
            self._next_secs = (report.secs // self._interval_secs + 1) * self._interval_secs
            self.event(f'[{duration(report.secs)}] {metrics_line(report)}')


def metrics_line(report: RunReport) -> str:
    """All metrics of the run, and the jobs that do not run, on one line."""
    parts = [f'{label} {text}' for label, text in report.metrics().items()]
    states = report.by_state().items()
    parts += [f'{", ".join(names)}: {state}' for state, names in states if not state.startswith('running')]
    return ' | '.join(parts)
