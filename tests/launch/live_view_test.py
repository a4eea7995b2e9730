"""What the live view draws, recorded instead of shown."""

import dataclasses
import io
import re
import sys
import time
import types

import pytest
from rich.console import Console

from tests.launch.example_reports import example_run
from tflearn.launch.live_view import LiveView, NotebookView, draw
from tflearn.launch.reports import JobReport, RunReport


def drawn(report, width=100, colours=False):
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(draw('runs/cartpole', report, width))
    return [line.rstrip() for line in console.export_text(styles=colours).splitlines()]


def test_shows_progress_metrics_and_jobs():
    lines = drawn(example_run(), width=120)
    assert lines[1] == 'tflearn  runs/cartpole  2 min 13 s'
    assert lines[3].startswith('train  ━━━━')
    assert lines[3].endswith('62%  1 min 22 s left')
    assert lines[5:] == [
        'train steps     12,400 of 20,000 at 93.1/s  env steps       49,600 at 372/s',
        'replay          49,600 of 100,000           samples/insert  64.13 (target 64)',
        'collect return  231.4                       greedy return   342.1 (target 475)',
        'policy lag      1.3 versions                data wait       12%',
        '',
        'replay_server  ● running   inserts 49,600, samples 3,180,000',
        'train          ● running   loss 0.01235, policy version 124',
        'evaluate       ● running   train step 12,000, episodes 20, best 361.5',
        'collect_0      ● running   186/s, mean return 220.4, episodes 301, environment 61%, policy 30%, writing 9%',
        'collect_1      ● running   restarts 1  186/s, mean return 242.3, episodes 298, environment 61%, policy 30%, '
        'writing 9%',
    ]


def test_shows_a_run_without_metrics():
    waiting = 'waiting for the replay server at localhost:8000'
    jobs = (JobReport('replay_server', 'replay_server', 'starting'), JobReport('train', 'train', waiting))
    assert drawn(RunReport(jobs, 2.0))[1:] == [
        'tflearn  runs/cartpole  2 s',
        '',
        'no train step yet',
        '',
        'replay_server  ● starting',
        f'train          ● {waiting}',
    ]


def test_colours_states():
    jobs = [JobReport('train', 'train', state) for state in ('running', 'waiting for x', 'died', 'finished')]
    text = '\n'.join(drawn(RunReport(tuple(jobs), 2.0), colours=True))
    for code, state in [('32', 'running'), ('33', 'waiting for x'), ('1;31', 'died'), ('36', 'finished')]:
        assert f'\x1b[{code}m● \x1b[0m{state}' in text


def test_marks_a_silent_job():
    job = JobReport('train', 'train', 'running', metrics={'time': time.time() - 90.0})
    assert 'silent for 1 min 30 s' in drawn(RunReport((job,), 100.0))[-1]


def test_narrow_terminal_shows_all_metrics():
    lines = drawn(example_run(), width=60)
    assert lines[5] == 'train steps     12,400 of 20,000 at 93.1/s'
    assert lines[12] == 'data wait       12%'
    assert lines[-1] == 'collect_1      ● running   restarts 1  186/s, mean return 2…'


def test_draws_more_steps_than_planned():
    report = example_run()
    train = dataclasses.replace(report.jobs[1], metrics={'train_step': 30, 'num_train_steps': 20})
    assert drawn(RunReport((train,), 1.0))[3].endswith('150%')


def test_writes_events_above_the_view():
    out = io.StringIO()
    view = LiveView('runs/cartpole', out)
    view.open()
    view.show(example_run())
    view.event('collect_0 died; the end of logs/collect_0.log:\n  [bold]nan[/bold] in x[0]')
    view.close()
    lines = out.getvalue().splitlines()
    assert lines[0].endswith('collect_0 died; the end of logs/collect_0.log:')
    assert lines[1] == '      [bold]nan[/bold] in x[0]'


@pytest.fixture
def shown(monkeypatch):
    """What a notebook is given to show."""
    from IPython import display

    shown = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(data))
    monkeypatch.setattr(display, 'display', lambda data, **_: (shown.append(data), handle)[1])
    return shown


def test_a_notebook_draws_in_one_place(shown, capsys):
    view = NotebookView('runs/cartpole', sys.stdout)
    view.event('begins')
    for _ in range(2):
        view.show(example_run())
    assert len(shown) == 2
    assert 'runs/cartpole' in shown[0]['text/html'] and '12,400 of 20,000' in shown[1]['text/html']
    assert shown[0]['text/plain'].startswith('train steps 12,400 of 20,000')
    assert capsys.readouterr().out.endswith('begins\n')


def contrast(one, other):
    """Returns the contrast of two colours, by WCAG 2: 21 of black on white."""

    def luminance(colour):
        parts = (int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4))
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    least, greatest = sorted(luminance(colour) for colour in (one, other))
    return (greatest + 0.05) / (least + 0.05)


@pytest.mark.parametrize('background', ['ffffff', '111111'])  # of JupyterLab's two themes
def test_a_notebook_can_be_read_light_and_dark(shown, background):
    states = ('running', 'died', 'waiting for x', 'finished', 'stopping')
    jobs = [dataclasses.replace(job, state=state) for job, state in zip(example_run().jobs, states, strict=True)]
    NotebookView('runs/cartpole', sys.stdout).show(RunReport(tuple(jobs), 2.0))
    colours = set(re.findall(r'(?<![-\w])color: #(\w+)', shown[0]['text/html']))
    assert len(colours) >= 5
    assert {colour for colour in colours if contrast(colour, background) < 3.5} == set()


def test_a_notebook_leaves_nothing_out(shown):
    NotebookView('runs/cartpole', sys.stdout).show(example_run())
    assert 'overflow-x: auto' in shown[0]['text/html']
    assert shown[0]['text/html'].count('writing 9%') == 2
