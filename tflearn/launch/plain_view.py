"""The view of a run without a terminal: a line for every event and one every ten seconds."""

import time
from typing import TextIO

from tflearn.launch.reports import RunReport, duration

_LOGGED_AS_EVENTS = ('stopping', 'stopped', 'died')


class PlainView:
    """Writes plain lines, each with the time of day."""

    def __init__(self, out: TextIO, interval_secs: float = 10.0):
        self._out = out
        self._interval_secs = interval_secs
        self._next_secs = interval_secs
        self._logged: set[tuple[str, int, str]] = set()  # (job name, restarts, state)

    def open(self) -> None:
        """Nothing to set up."""

    def close(self) -> None:
        """Nothing to close."""

    def event(self, text: str) -> None:
        """Writes what happened; further lines of `text` are indented."""
        first, *more = text.splitlines()
        lines = [f'{time.strftime("%T")} {first}', *(f'    {line}' for line in more)]
        print('\n'.join(lines), file=self._out, flush=True)

    def show(self, report: RunReport) -> None:
        """Writes each state that a job has for the first time since its start and, when they are due, the metrics.

        A job that returns to a state, as `evaluate` does for each policy, gets no line for it.
        """
        restarts = {job.name: job.restarts for job in report.jobs}
        for state, names in report.by_state().items():
            new = [name for name in names if (name, restarts[name], state) not in self._logged]
            self._logged.update((name, restarts[name], state) for name in new)
            if new and state not in _LOGGED_AS_EVENTS:
                self.event(f'{", ".join(new)}: {state}')
        if report.secs >= self._next_secs:
            self._next_secs = (report.secs // self._interval_secs + 1) * self._interval_secs
            self.event(f'[{duration(report.secs)}] {metrics_line(report)}')


def metrics_line(report: RunReport) -> str:
    """Returns all metrics of the run, and the jobs that do not run, on one line."""
    parts = [f'{label} {text}' for label, text in report.metrics().items()]
    states = report.by_state().items()
    parts += [f'{", ".join(names)}: {state}' for state, names in states if not state.startswith('running')]
    parts += [f'{job.name}: {job.evaluation}' for job in report.jobs if job.evaluation]
    parts += [f'{job.name}: silent for {duration(job.silent_secs)}' for job in report.jobs if job.silent_secs]
    return ' | '.join(parts)
