"""Makes the pictures of what runs look like, in docs/images,
by the checkout's own programs and a browser.

    python -m tools.screenshots runs/default runs/small [--chromium=FILE]

The runs are the two groups of docs/seeds.md, as it makes them. It needs playwright, which is in no extra, and its
Chromium (`playwright install chromium`), or another one.
"""

import argparse
import contextlib
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from IPython import display

from tests.launch.example_reports import example_run
from tflearn.core.waiting import wait_until
from tflearn.launch.live_view import NotebookView

ROOT = pathlib.Path(__file__).resolve().parents[1]
IMAGES = ROOT / 'docs' / 'images'
_LOADING_MSECS = 15_000  # TensorBoard's page asks for its tables by and by
_START_SECS = 120.0


def main() -> None:
    """Writes report.png, comparison.png, watch.png and hparams.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('groups', nargs=2, metavar='FOLDER', help='a folder of runs')
    parser.add_argument('--chromium', metavar='FILE', help="a browser; by default playwright's own")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _browser(arguments.chromium) as browser:
        place = pathlib.Path(folder)
        groups = [_copy(group, place) for group in arguments.groups]
        _tflearn('compare', *groups, '--output=comparison', cwd=place)
        shutil.copyfile(place / 'comparison' / 'comparison.png', IMAGES / 'comparison.png')
        _tflearn('report', *groups, '--output=report.html', cwd=place)
        _shoot(browser, (place / 'report.html').as_uri(), 'report', 900, 1020)
        (place / 'watch.html').write_text(f'<!doctype html><meta charset="utf-8">{live_view()}', encoding='utf-8')
        _shoot(browser, (place / 'watch.html').as_uri(), 'watch', 980, 260)
        for run in sorted(each for group in groups for each in (place / group).glob('seed_*/')):
            _tflearn('track', run, '--to=hparams', '--once', cwd=place)
        with _tensorboard(place / 'runs') as address:
            _shoot(browser, f'{address}/#hparams', 'hparams', 1400, 500, _LOADING_MSECS)


def live_view() -> str:
    """Returns the live view of a run as a notebook shows it, which is that of a terminal,
    in HTML.
    """
    shown: list[Any] = []
    show, display.display = display.display, lambda data, **_: shown.append(data['text/html'])
    try:
        NotebookView('runs/cartpole', sys.stdout).show(example_run())
    finally:
        display.display = show
    return shown[0]


def _copy(group: str, place: pathlib.Path) -> str:
    """Copies a group, since trackers write into runs; returns its name there."""
    name = f'runs/{pathlib.Path(group).resolve().name}'
    shutil.copytree(group, place / name)
    return name


def _tflearn(*arguments: str | pathlib.Path, cwd: pathlib.Path) -> None:
    subprocess.run([pathlib.Path(sys.executable).parent / 'tflearn', *arguments], cwd=cwd, check=True)


@contextlib.contextmanager
def _browser(chromium: str | None) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # by hand: see above

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=['--no-sandbox', '--headless=shell'])
        try:
            yield browser
        finally:
            browser.close()


def _shoot(browser: Any, address: str, name: str, width: int, height: int, wait_msecs: int = 300) -> None:
    page = browser.new_page(viewport={'width': width, 'height': height})
    page.goto(address)
    page.wait_for_timeout(wait_msecs)
    page.screenshot(path=IMAGES / f'{name}.png')
    page.close()


@contextlib.contextmanager
def _tensorboard(folder: pathlib.Path) -> Iterator[str]:
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    flags = (f'--logdir={folder}', '--host=127.0.0.1', f'--port={port}')
    program = subprocess.Popen([sys.executable, '-m', 'tensorboard.main', *flags], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), 'TensorBoard', _START_SECS)
        yield f'http://127.0.0.1:{port}'
    finally:
        program.terminate()
        program.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(('127.0.0.1', port), timeout=1.0).close()
    except OSError:
        return False
    return True


if __name__ == '__main__':
    main()
