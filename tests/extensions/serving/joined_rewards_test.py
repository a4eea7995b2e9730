"""Two servers, a slow source, wrong clocks and an outage at once: no reward is joined that is not known."""

import collections
import contextlib
import json
import re
import threading
import time
import urllib.error

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

from tests.extensions.serving.decision_log_test import lines_of
from tests.extensions.serving.outcomes_test import PREDICT, serving
from tests.extensions.serving.rest_test import ask
from tflearn.core import extensions
from tflearn.core.errors import UserError
from tflearn.data.reader import Dataset, EpisodeReader

MAP = "id = 'id'\naction = {kind = 'integer', high = 1}\nobservation = {x = {column = 'observation', length = 4}}"
WINDOW_SECS, STEP_SECS = 0.3, 0.1
AHEAD_SECS = 200.0  # what a server still accepts


class Shop:
    """A shop that asks two servers what to show. Clicks are reported to any of them; sales come in files, late."""

    def __init__(self, folder):
        self.folder, self.random = folder, np.random.default_rng(5)
        self.num_decisions, self.num_lost = 0, 0
        self.outcomes = collections.defaultdict(set)  # all of a decision: (time, reward)
        self._waiting, self._sales = [], []  # (when it happens, id, reward)
        self._lag_secs = 0.1  # from an outcome to the answer of the server that wrote it

    def step(self, deciding, reporting):
        """Makes ten decisions, and reports what has come of earlier ones to a server, which may be gone."""
        ids = [f'{self.num_decisions}-{i}' for i in range(10)]
        instances = [[float(self.num_decisions + i), 0.0, 0.0, 0.0] for i in range(10)]
        code, _ = ask(deciding, PREDICT, {'instances': instances}, {'Event-Id': f'{self.num_decisions}'})
        assert code == 200
        self.num_decisions += 10
        now = time.time()
        for event_id in ids:
            if self.random.random() < 0.6:
                self._waiting.append((now + self.random.uniform(0, 0.8 * WINDOW_SECS), event_id, 1.0))
            if self.random.random() < 0.4:
                self._sales.append((now + self.random.uniform(0, 0.8 * WINDOW_SECS), event_id, 10.0))
        threading.Event().wait(STEP_SECS)
        now = time.time()
        come = [(now, name, reward) for at, name, reward in self._waiting if at <= now]
        self._waiting = [each for each in self._waiting if each[0] > now]
        if self.num_decisions % 40 == 0:
            come += [
                (now + AHEAD_SECS, ids[0], 100.0),  # by a clock that is ahead: outside of any window
                (now - 60, ids[1], 100.0),  # by one that is behind: before its decision
                *come[:3],  # again
            ]
        self._report(reporting, come, now)

    def _report(self, port, come, now):
        outcomes = [{'event_id': name, 'reward': reward, 'time': at} for at, name, reward in come]
        if not outcomes:
            return
        try:
            assert ask(port, '/v1/outcomes', {'outcomes': outcomes}) == (200, {'accepted': len(outcomes)})
        except urllib.error.URLError:
            self.num_lost += len(come)
        else:
            self._lag_secs = max(self._lag_secs, 1.1 * (time.time() - now))
        self._add(come)
        ahead = {'event_id': come[0][1], 'reward': 100, 'time': time.time() + 3600}
        with contextlib.suppress(urllib.error.URLError):
            assert ask(port, '/v1/outcomes', ahead)[0] == 400

    def _add(self, come):
        for at, name, reward in come:
            self.outcomes[name].add((at, reward))

    def deliver_sales(self):
        """Writes a file of all sales until now."""
        now = time.time()
        come = [each for each in self._sales if each[0] <= now]
        self._sales = [each for each in self._sales if each[0] > now]
        rows = [{'event_id': name, 'reward': reward, 'time': at} for at, name, reward in sorted(come)]
        path = self.folder / 'sales' / f'sales-{time.time_ns()}.jsonl'
        path.parent.mkdir(exist_ok=True)
        path.write_text(''.join(json.dumps(each) + '\n' for each in rows))
        self._add(come)

    def join(self, output, **options):
        """Joins what is there; returns the rewards of decisions by their numbers, and when that was."""
        outcomes = {'paths': [self.folder / 'log', self.folder / 'sales'], 'settle_secs': self._lag_secs, **options}
        outcomes |= {'window_secs': WINDOW_SECS, 'default_reward': 0.0, 'combine': 'sum'}
        (self.folder / 'map.toml').write_text(MAP)
        begun, given = time.time(), (self.folder / 'map.toml', self.folder / output)
        try:
            extensions.load('import').import_logs([self.folder / 'log'], *given, outcomes=outcomes)
        except UserError as error:
            assert re.search('no complete episode|without a file', str(error)), error
            return {}, begun
        episodes = EpisodeReader(Dataset([str(given[1])])).episodes()
        return {int(each['observation.x'][0, 0]): float(each['reward'][0]) for each in episodes}, begun


@contextlib.contextmanager
def ready(root, log, file_secs):
    """Yields the port of a server that writes: the first outcome waits until the process that does is there."""
    with serving(root, log, file_secs=file_secs) as (port, _, _):
        assert ask(port, '/v1/outcomes', {'event_id': 'none', 'reward': 0})[0] == 200
        yield port


@pytest.mark.slow
def test_no_decision_gets_a_reward_that_is_not_known(root, tmp_path):
    """Files are open, one server gets no outcomes for a while, one is gone for a while, sales come late."""
    shop, log, joined = Shop(tmp_path), tmp_path / 'log', {}
    with ready(root, log, 0.2) as first:
        with ready(root, log, 60.0) as second:  # its files are open to the end
            for i in range(10):
                shop.step((first, second)[i % 2], (second, first)[i // 2 % 2])
            shop.deliver_sales()
            joined['open files'] = shop.join('open')
        for _ in range(6):
            shop.step(first, first)
        joined['a slow source'] = shop.join('slow')
        shop.deliver_sales()
        # One server is gone; what is reported to it is lost.
        outage = [time.time() - STEP_SECS]
        for i in range(4):
            shop.step(first, (first, second)[i % 2])
        left_out = {'outages': [f'{outage[0]},{time.time()}']}
        with ready(root, log, 0.2) as second:
            for i in range(6):
                shop.step((first, second)[i % 2], first)  # the second server gets no outcomes
            shop.deliver_sales()
            joined['an idle server'] = shop.join('idle', **left_out)
    threading.Event().wait(WINDOW_SECS)
    shop.deliver_sales()
    joined['last'] = shop.join('last', **left_out)

    decided = {int(line['observation'][0]): (line['id'], line['time']) for line in lines_of(log)}
    assert len(decided) == shop.num_decisions and shop.num_lost
    for name, (rewards, begun) in joined.items():
        for number, reward in rewards.items():
            event_id, at = decided[number]
            outcomes = shop.outcomes[event_id]  # those that were lost too
            in_window = sum(value for when, value in outcomes if at <= when <= at + WINDOW_SECS)
            assert reward == in_window and all(when >= at for when, _ in outcomes), (name, event_id, at, outcomes)
            assert at + WINDOW_SECS <= begun, (name, event_id)
    assert len(joined['last'][0]) > 50 and (tmp_path / 'last' / 'unknown').exists()
