"""Outcomes that come later are joined with a server's decisions: the same files, one data set."""

import json
import os
import re
import time

import numpy as np
import pytest

from tflearn.core import extensions
from tflearn.core.errors import UserError
from tflearn.data import columns, metadata
from tflearn.data.reader import Dataset, EpisodeReader

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

DEADLINE_SECS = 120.0
ENVIRONMENT = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
MAP = """
action = {kind = 'integer', high = 2}
[observation]
x = 'observation'
"""
DECISIONS = [  # id, time, action
    ('a', 100.0, 0),
    ('b', 110.0, 1),
    ('c', 120.0, 2),
    ('d', 130.0, 1),
    ('e', 195.0, 1),  # its window is open at the end
]
OUTCOMES = [  # of a decision, time, reward
    ('a', 105.0, 1.0),
    ('a', 103.0, 2.0),
    ('a', 105.0, 1.0),  # a double
    ('b', 160.0, 7.0),  # too late
    ('c', 121.0, 0.1),  # not a number of float32
    ('x', 125.0, 9.0),  # of no decision
    ('e', 196.0, 1.0),
    ('c', 200.0, 5.0),
]


def write(path, names, rows):
    path.write_text(''.join(json.dumps(dict(zip(names, row, strict=True))) + '\n' for row in rows))
    return path


def decisions(folder, rows=DECISIONS):
    rows = [(i, at, action, 0.5, at) for i, at, action in rows]
    return write(folder / 'decisions-1.jsonl', ('id', 'time', 'action', 'probability', 'observation'), rows)


def outcomes(folder, rows=OUTCOMES, name='outcomes-1.jsonl'):
    return write(folder / name, ('event_id', 'time', 'reward'), rows)


def join(folder, output='data', mapped=MAP, files=None, **options):
    """Joins the decisions in a folder with outcomes, in this process."""
    (folder / 'map.toml').write_text(mapped)
    given = {'paths': files or [folder], 'settle_secs': 0.0, **options}
    allowed = {name: given.pop(name) for name in ('max_bad_rows', 'refused') if name in given}
    importing = extensions.load('import')
    return importing.import_logs([folder], folder / 'map.toml', folder / output, outcomes=given, **allowed)


def rewards(directory):
    """Returns the rewards of each episode by the first observation."""
    episodes = EpisodeReader(Dataset([str(directory)])).episodes()
    return {float(each['observation.x'][0]): each['reward'][:-1].tolist() for each in episodes}


@pytest.mark.parametrize(('combine', 'of_a'), [('first', 2.0), ('sum', 3.0), ('last', 1.0)])
def test_outcomes_within_the_window_count(tmp_path, combine, of_a):
    decisions(tmp_path)
    outcomes(tmp_path)
    found = join(tmp_path, window_secs=30.0, default_reward=-1.0, combine=combine).splitlines()
    assert {
        'steps: 4 = 2 with an outcome + 2 without one',
        'rows that are good: 5 = 4 steps + 1 decisions whose window is open',
        'outcomes that are good: 8 = 4 in their window + 2 late + 1 without a decision + 1 doubles',
    } <= {*found}
    assert rewards(tmp_path / 'data') == {100.0: [of_a], 110.0: [-1.0], 120.0: [np.float32(0.1)], 130.0: [-1.0]}
    counts = columns.read_metadata(tmp_path / 'data')['import']
    assert counts == {
        'rows': 5,
        'episodes': 4,
        'steps': 4,
        'outcomes': 8,
        'double outcomes': 1,
        'outcomes in their window': 4,
        'outcomes that only activate': 0,
        'late outcomes': 2,
        'outcomes before their decision': 0,
        'outcomes without a decision': 1,
        'decisions with a wrong outcome': 0,
        'decisions with an outcome': 2,
        'decisions without an outcome': 2,
        'decisions whose window is open': 1,
        **({} if combine == 'sum' else {'outcomes with another reward than the one that counts': 1}),
    }
    spec = columns.read_specs(tmp_path / 'data').action
    assert (spec.minimum, spec.maximum, spec.dtype.name) == (0, 2, 'int64')


def test_a_reward_is_the_weighted_sum_of_parts_of_outcomes(tmp_path):
    decisions(tmp_path)
    rows = [('a', 101.0, 1, 40.0), ('a', 102.0, 0, 60.0), ('b', 111.0, 1, None), ('c', 121.0, 0, 500.0)]
    rows.append(('x', 200.0, 1, 0.0))  # the end of the log
    write(tmp_path / 'outcomes-1.jsonl', ('event_id', 'time', 'click', 'ms'), rows)
    (tmp_path / 'weights.json').write_text('{"click": 1, "latency": -0.01}')
    parts = "[parts]\nclick = 'click'\nlatency = {column = 'ms', low = 0, high = 500}\n"
    mapped = f"weights = 'weights.json'\n{MAP}{parts}"
    join(tmp_path, mapped=mapped, window_secs=30.0, default_reward=0.0, combine='sum', max_bad_rows=1)
    assert rewards(tmp_path / 'data') == {100.0: [0.0], 120.0: [-5.0], 130.0: [0.0]}, 'not that of b, which is unknown'
    parts = {
        float(each['observation.x'][0]): (each['policy_info.part_click'][0], each['policy_info.part_latency'][0])
        for each in EpisodeReader(Dataset([str(tmp_path / 'data')])).episodes()
    }
    assert parts == {100.0: (1.0, 100.0), 120.0: (0.0, 500.0), 130.0: (0.0, 0.0)}
    unknown = EpisodeReader(Dataset([str(tmp_path / 'data' / 'unknown')]), need_finite=False)
    (episode,) = unknown.episodes()
    assert np.isnan(episode['policy_info.part_click'][0]) and np.isnan(episode['policy_info.part_latency'][0])
    assert metadata.stated([tmp_path / 'data']) == {'part.latency.low': 0, 'part.latency.high': 500}


def test_decisions_before_the_last_seconds_are_left_out(tmp_path):
    decisions(tmp_path)
    outcomes(tmp_path)
    join(tmp_path, window_secs=30.0, default_reward=-1.0, last_secs=80.0)  # of a log that ends at 195
    assert rewards(tmp_path / 'data') == {120.0: [np.float32(0.1)], 130.0: [-1.0]}
    assert columns.read_metadata(tmp_path / 'data')['import']['decisions that are too old'] == 2


def test_a_log_whose_windows_are_all_open_is_named(tmp_path):
    decisions(tmp_path)
    outcomes(tmp_path)
    message = r'no complete episode in .*decisions-1.jsonl \(\d decisions whose window is open: wait'
    with pytest.raises(UserError, match=message):
        join(tmp_path, window_secs=3600.0)
    assert not (tmp_path / 'data').exists()


def test_without_a_default_and_a_window_only_what_has_outcomes_is_kept(tmp_path):
    decisions(tmp_path)
    outcomes(tmp_path)
    # A map of `import` too: the reward is the outcomes', though the decisions have no such column.
    join(tmp_path, mapped=f"reward = 'click'\n{MAP}")
    assert rewards(tmp_path / 'data') == {100.0: [1.0], 110.0: [7.0], 120.0: [5.0], 195.0: [1.0]}


def test_sessions_become_episodes_and_wait_for_their_last_decision(tmp_path):
    decisions(tmp_path)
    outcomes(tmp_path)
    # a and c are one session; b, d and e another, which is not complete
    (tmp_path / 'decisions-1.jsonl').write_text(
        ''.join(
            json.dumps({**json.loads(line), 'user': 'ac'.find(line[8]) >= 0}) + '\n'
            for line in (tmp_path / 'decisions-1.jsonl').read_text().splitlines()
        )
    )
    join(tmp_path, window_secs=30.0, default_reward=0.0, mapped=f"episode = 'user'\n{MAP}")
    assert rewards(tmp_path / 'data') == {100.0: [1.0, np.float32(0.1)]}
    join(tmp_path, 'all', f"episode = 'user'\n{MAP}", default_reward=0.0)
    assert rewards(tmp_path / 'all') == {100.0: [1.0, 5.0], 110.0: [7.0, 0.0, 1.0]}


def test_the_same_outcomes_give_the_same_data_set_however_they_were_delivered(tmp_path):
    random = np.random.default_rng(3)
    many = [(f'd{i}', 1000.0 + i, int(random.integers(3))) for i in range(2_000)]
    of = random.integers(2_000, size=5_000)
    came = [(f'd{d}', 1000.0 + float(d + random.integers(150)), float(i % 7)) for i, d in enumerate(of)]
    decisions(tmp_path, many)
    found = []
    for name in ('once', 'shuffled and twice'):
        folder = tmp_path / name.split()[0]
        folder.mkdir()
        rows = came if name == 'once' else [(came * 2)[i] for i in random.permutation(10_000)]
        files = [outcomes(folder, rows[i::3], f'outcomes-{i}.jsonl') for i in range(3)]
        options = {'window_secs': 100.0, 'default_reward': 0.0, 'combine': 'sum'}
        join(tmp_path, f'data-{folder.name}', files=files, **options)
        found.append([path.read_bytes() for path in sorted((tmp_path / f'data-{folder.name}').glob('*.tfrecord'))])
    assert found[0] == found[1]
    # Against a loop over all of them.
    until, got = 1000.0 + 1_999, rewards(tmp_path / 'data-once')  # the newest decision
    for i in range(0, 2_000, 50):
        own = {(at, reward) for event_id, at, reward in came if event_id == f'd{i}' and at <= 1000.0 + i + 100}
        if 1000.0 + i + 100 <= until:
            assert got[1000.0 + i] == [sum(reward for _, reward in own)]
        else:
            assert 1000.0 + i not in got


@pytest.mark.parametrize(
    ('mapped', 'line', 'message'),
    [
        (
            MAP,
            '{"event_id": "a", "time": 1, "reward": "x"}',
            "got reward = 'x' in outcomes-1.jsonl, row 1; need a finite",
        ),
        (
            MAP,
            '{"event_id": null, "time": 1, "reward": 1}',
            'got event_id = None in outcomes-1.jsonl, row 1; need an id',
        ),
        (f"outcomes = {{when = 'time'}}\n{MAP}", '{}', "got outcomes = {'when': 'time'}; need a table of columns"),
        (
            MAP.replace('high = 2', 'high = 1'),
            '{"event_id": "a", "time": 1, "reward": 1}',
            'got action = 2.0 in decisions-1',
        ),
    ],
)
def test_what_cannot_be_joined_is_named(tmp_path, mapped, line, message):
    decisions(tmp_path)
    (tmp_path / 'outcomes-1.jsonl').write_text(f'{line}\n')
    with pytest.raises(UserError, match=re.escape(message)):
        join(tmp_path, mapped=mapped)


DEFERRED = [  # id, time, whether it was shown when it was made, observation
    ('a', 100.0, None, 1.0),
    ('b', 101.0, 0, 2.0),
    ('c', 102.0, 0, 3.0),
    ('d', 103.0, 0, 4.0),
    ('e', 104.0, 0, 5.0),
    ('f', 105.0, 1, 6.0),
    ('g', 195.0, 0, 7.0),  # its window is open at the end
]
REPORTED = [  # of a decision, time, reward, whether it was shown
    ('a', 110.0, 1.0, None),
    ('b', 110.0, None, 1),
    ('b', 111.0, 2.0, None),
    ('c', 110.0, 9.0, None),  # never shown
    ('d', 160.0, None, 1),  # shown too late
    ('e', 110.0, None, 1),
    ('e', 112.0, None, 1),
    ('f', 110.0, 3.0, 0),
    ('g', 196.0, None, 1),
    ('x', 200.0, 1.0, None),
]
ACTIVATED = ('id', 'time', 'activated', 'observation')


@pytest.mark.parametrize('kind', ['jsonl', 'csv'])
def test_what_was_never_activated_is_no_evidence(tmp_path, kind):
    rows = {'decisions-1': (ACTIVATED, DEFERRED), 'outcomes-1': (('event_id', 'time', 'reward', 'activated'), REPORTED)}
    for name, (names, values) in rows.items():
        values = [(*row, 1, 0.5) if names is ACTIVATED else row for row in values]
        names = (*names, 'action', 'probability') if names is ACTIVATED else names
        if kind == 'csv':
            lines = [names, *(['' if each is None else each for each in row] for row in values)]
            (tmp_path / f'{name}.csv').write_text(''.join(','.join(map(str, row)) + '\n' for row in lines))
        else:
            given = [[(key, each) for key, each in zip(names, row, strict=True) if each is not None] for row in values]
            (tmp_path / f'{name}.jsonl').write_text(''.join(json.dumps(dict(row)) + '\n' for row in given))
    found = join(tmp_path, window_secs=50.0, default_reward=0.0)
    assert rewards(tmp_path / 'data') == {1.0: [1.0], 2.0: [2.0], 5.0: [0.0], 6.0: [3.0]}
    assert {'decisions that were never activated: 2', 'decisions without an outcome: 1'} <= {*found.splitlines()}
    assert 'decisions whose window is open: 1' in found


def test_a_log_of_its_own_says_what_was_activated(tmp_path):
    names, mapped = ('x', 'item', 'r', 'seen'), "activated = 'seen'\nreward = 'r'\naction = {column = 'item', kind = "
    mapped += "'category'}\nobservation = {x = {}}"
    # Half of the decisions have never been shown, and have the reward 0.
    lines = ['1,cup,1,true', '2,pot,0,true', '3,cup,0,false', '4,pot,0,False', '5,cup,1,', '6,pot,1,7']
    path, importing = tmp_path / 'log.csv', extensions.load('import')
    path.write_text('\n'.join([','.join(names), *lines]))
    (tmp_path / 'map.toml').write_text(mapped)
    found = importing.import_logs([path], tmp_path / 'map.toml', tmp_path / 'data', max_bad_rows=1)
    assert rewards(tmp_path / 'data') == {1.0: [1.0], 2.0: [0.0], 5.0: [1.0]}
    assert {'decisions that were never activated: 2', 'bad rows: 1'} <= {*found.splitlines()}
    with pytest.raises(UserError, match="got seen = '7' in log.csv, row 7; need true or false"):
        importing.import_logs([path], tmp_path / 'map.toml', tmp_path / 'other')
    (tmp_path / 'map.toml').write_text(mapped.replace("'seen'", "'sen'"))
    with pytest.raises(UserError, match="with 0 columns 'sen'; need one"):
        importing.import_logs([path], tmp_path / 'map.toml', tmp_path / 'other')


def test_decisions_of_a_server_are_joined(tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.extensions.serving.decision_log_test import OBSERVATION, serving
    from tests.testing import served_policies
    from tflearn.extensions.serving.exploration import Exploration

    served_policies.Publisher(tmp_path / 'policies').publish(7)
    with serving(tmp_path / 'policies', tmp_path, Exploration(0.5), ['greedy_policy']) as (ask, _):
        answers = {f'v{i}': ask(OBSERVATION[i % 2][None], event_id=f'v{i}') for i in range(20)}
    outcomes(tmp_path, [(name, time.time(), float(i)) for i, name in enumerate(answers)])
    mapped = "action = {kind = 'integer', high = 1}\n[observation]\nx = {column = 'observation', length = 4}"
    join(tmp_path, mapped=mapped)
    episodes = list(EpisodeReader(Dataset([str(tmp_path / 'data')])).episodes())
    assert len(episodes) == 20
    by_reward = {int(each['reward'][0]): each for each in episodes}
    for i, answer in enumerate(answers.values()):
        assert by_reward[i]['action'][0] == answer['action'][0]
        np.testing.assert_array_equal(by_reward[i]['observation.x'][0], OBSERVATION[i % 2])
        np.testing.assert_allclose(
            np.exp(by_reward[i]['policy_info.log_probability'][0]), answer['probability'][0], rtol=1e-6
        )


MANY = [(f'd{i}', 1000.0 + i, i % 3) for i in range(2_000)]
CLICKS = [(f'd{i}', 1300.0 + i, 1.0) for i in range(2_000)]  # each decision is worth 1, as is known 300 s later


@pytest.mark.parametrize('late', [[], [('late', 1.7e12, 1)]], ids=['seconds', 'milliseconds'])
def test_a_clock_that_is_ahead_closes_no_window(tmp_path, late):
    decisions(tmp_path, [*MANY, *late])
    known = [each for each in CLICKS if each[1] <= 3000.0]
    outcomes(tmp_path, [*known, ('d5', 3000.0 + 3600, 1.0)])
    counted = join(tmp_path, window_secs=600.0, default_reward=0.0, max_bad_rows=len(late))
    assert 'decisions whose window is open: 600\n' in counted
    found = rewards(tmp_path / 'data')
    # Decisions whose window is open are left out, though outcomes of half of them have come.
    assert sorted(found) == [1000.0 + i for i in range(1_400)] and set(map(tuple, found.values())) == {(1.0,)}


@pytest.mark.parametrize(
    ('shift', 'what'), [(3600.0, 'later than --window_secs after'), (-3600.0, 'before'), (0.0, '')]
)
def test_a_source_whose_clock_is_wrong_is_a_warning(tmp_path, shift, what):
    decisions(tmp_path, MANY)
    right = outcomes(tmp_path, CLICKS[::2], 'clicks-1.jsonl')
    wrong = outcomes(tmp_path, [(name, at + shift, reward) for name, at, reward in CLICKS[1::2]], 'clicks-2.jsonl')
    found = join(tmp_path, files=[right, wrong], window_secs=600.0, default_reward=0.0, until=9000.0)
    warnings = [line for line in found.splitlines() if line.startswith('warning: ')]
    if what:
        assert f'1000 of 1000 outcomes of clicks-2.jsonl are {what} their decisions in decisions-1.jsonl' in warnings[0]
        assert f'by {abs(shift + 300):.0f} s: if the clock of one of both is wrong, correct its times' in warnings[0]
    assert len(warnings) == bool(what)


def test_decisions_without_probabilities_are_joined_to_train(tmp_path):
    path = decisions(tmp_path)
    path.write_text(path.read_text().replace('"probability": 0.5, ', ''))
    outcomes(tmp_path)
    found = join(tmp_path, window_secs=30.0, default_reward=0.0)
    assert "warning: no decision has a 'probability', and the column map names no `propensity`" in found
    names = {column.name for column in columns.read_columns(tmp_path / 'data')}
    assert (
        'policy_info.id' in names
        and 'policy_info.log_probability' not in names
        and len(rewards(tmp_path / 'data')) == 4
    )
    with pytest.raises(UserError, match="with 0 columns 'p'; need one"):
        join(tmp_path, 'other', f"propensity = 'p'\n{MAP}")


@pytest.mark.parametrize(
    ('ranges', 'warned', 'first'),
    [
        ('reward_range = [0, 5]', '3 rewards are outside of the stated range, 0 to 5', '-1 in decisions-1.jsonl'),
        ('reward_range = [-1, 5]', None, None),
        (
            "episode = 'action'\nreturn_range = [0, 5]",
            '1 sums of rewards are outside',
            '-3 in decisions-1.jsonl, row 2',
        ),
    ],
)
def test_rewards_outside_of_the_stated_range_are_named(tmp_path, ranges, warned, first):
    decisions(tmp_path)
    outcomes(tmp_path, [('a', 105.0, 0.1), ('c', 121.0, 5.0), ('x', 300.0, 1.0)])
    found = join(tmp_path, mapped=f'{ranges}\n{MAP}', window_secs=30.0, default_reward=-1.0, until=230.0)
    # The default reward, of b, d and e, counts as all others.
    warnings = [line for line in found.splitlines() if 'stated range' in line]
    if warned is None:
        assert warnings == []
    else:
        assert warned in warnings[-1] and first in warnings[-1], found
        counted, _, kind = warned.partition(' are')[0].partition(' ')
        assert warnings[0] == f'{kind} outside of the stated range: {counted}'


@pytest.mark.parametrize('first', [0, 4])
def test_a_decision_in_milliseconds_is_a_bad_row(tmp_path, first):
    late = [(name, 1.7e12 + at, action) for name, at, action in DECISIONS[first:]]
    decisions(tmp_path, [*DECISIONS[:first], *late])
    outcomes(tmp_path)
    need = 'need seconds since 1970 (no milliseconds), not after its file was written'
    with pytest.raises(UserError, match=re.escape(f'in decisions-1.jsonl, row {first + 1}; {need}')):
        join(tmp_path, window_secs=30.0, default_reward=0.0)
    if first:
        counted = join(tmp_path, window_secs=30.0, default_reward=0.0, max_bad_rows=1).splitlines()
        assert {f'bad rows that {need} in time: 1', 'decisions whose window is open: 3'} <= {*counted}


def test_the_end_of_the_log_is_that_of_its_slowest_source_less_the_time_to_settle(tmp_path):
    decisions(tmp_path, MANY)
    fast = outcomes(tmp_path, [(name, at - 299, 0.5) for name, at, _ in CLICKS], 'clicks-1.jsonl')
    slow = [outcomes(tmp_path, CLICKS[i : i + 600], f'sales-{i}.jsonl') for i in (0, 300)]
    join(tmp_path, files=[fast, *slow], window_secs=400.0, settle_secs=50.0, default_reward=0.0, combine='sum')
    found = rewards(tmp_path / 'data')
    assert set(map(tuple, found.values())) == {(1.5,)} and max(found) == 1300 + 899 - 50 - 400


@pytest.mark.parametrize('name', ['.outcomes-{}-b-12ab.jsonl', 'outcomes-{}-b-12ab.jsonl'])
def test_a_file_that_is_not_read_ends_the_log_where_it_begins(tmp_path, name):
    """Another server still writes it, or completed it since the files were listed."""
    decisions(tmp_path, MANY)
    own = outcomes(tmp_path, CLICKS[::2], 'outcomes-19700101T001640.000000000Z-a-34cd.jsonl')
    outcomes(tmp_path, CLICKS[1::2], name.format('19700101T004000.000000000Z'))  # begun at 2400
    join(tmp_path, files=[own], window_secs=400.0, default_reward=0.0)
    assert max(rewards(tmp_path / 'data')) == 2000.0


def test_an_outcome_before_its_decision_is_a_wrong_one(tmp_path):
    decisions(tmp_path)
    outcomes(tmp_path, [('a', 105.0, 1.0), ('b', 110.0 - 3600, 1.0), ('c', 150.0, 2.0)])
    found = join(tmp_path, window_secs=30.0, default_reward=0.0)
    early = 'warning: 1 outcomes are 3600 to 3600 s before their decisions (median 3600), as by one writer with a wrong'
    assert f'{early} time zone; these decisions have no known reward' in found.splitlines()
    assert rewards(tmp_path / 'data') == {100.0: [1.0], 120.0: [2.0]}
    counts = columns.read_metadata(tmp_path / 'data')['import']
    assert counts['outcomes before their decision'] == counts['decisions with a wrong outcome: 1'] == 1


@pytest.mark.parametrize(
    ('line', 'need'),
    [
        ('{"event_id": "b", "time": 111, "reward": null}', 'a finite number'),
        ('{"event_id": "b", "time": 111000000000000, "reward": 1}', 'seconds since 1970 (no milliseconds), not after'),
        ('{"event_id": "b", "time": "noon", "reward": 1}', 'a time'),
    ],
)
def test_the_decision_of_a_wrong_outcome_has_no_reward(tmp_path, caplog, line, need):
    decisions(tmp_path)
    path = outcomes(tmp_path, [('a', 105.0, 1.0), ('b', 112.0, 1.0), ('c', 170.0, 2.0)])
    path.write_text(f'{path.read_text()}{line}\n')
    with pytest.raises(UserError, match=re.escape(need)):
        join(tmp_path, window_secs=50.0, default_reward=0.0)
    found = join(tmp_path, window_secs=50.0, default_reward=0.0, max_bad_rows=1)
    assert 'bad rows: 1 = 1 of outcomes' in found.splitlines()
    assert rewards(tmp_path / 'data') == {100.0: [1.0], 120.0: [2.0]}
    counts = columns.read_metadata(tmp_path / 'data')['import']
    assert counts['decisions with a wrong outcome: 1'] == counts['bad rows'] == 1
    assert f'in outcomes-1.jsonl, row 4; need {need}' in caplog.text


def test_a_fall_of_the_share_with_outcomes_is_a_warning_and_an_outage_is_left_out(tmp_path):
    decisions(tmp_path, MANY)
    random = np.random.default_rng(0)
    clicks = [each for each in CLICKS if random.random() < 0.3]
    outcomes(tmp_path, clicks)
    assert 'warning' not in join(tmp_path, 'whole', window_secs=400.0, default_reward=0.0)
    outcomes(tmp_path, [each for each in clicks if not 2000 < each[1] < 2400])
    found = join(tmp_path, 'lost', window_secs=400.0, default_reward=0.0)
    assert 'warning: only 0.00% of the decisions from 1' in found and '--outages=' in found
    assert len(columns.read_metadata(tmp_path / 'lost')['import_warnings']) >= 3
    given = {'window_secs': 400.0, 'default_reward': 0.0, 'outages': ['2000,2400']}
    found = join(tmp_path, 'left', **given)
    assert 'warning' not in found
    # Whether an outcome came or not: all decisions whose window meets the outage.
    assert sorted(rewards(tmp_path / 'left')) == [*map(float, range(1000, 1600)), *map(float, range(2401, 2600))]
    join(tmp_path, 'other', **{**given, 'outages': ['2000,2400,another_server']})
    assert len(rewards(tmp_path / 'other')) == 1_600


def test_an_outcome_with_an_id_counts_once(tmp_path):
    decisions(tmp_path)
    path = outcomes(tmp_path, [('a', 105.0, 1.0), ('c', 170.0, 2.0)])
    twice = [{'event_id': 'a', 'time': at, 'reward': 4.0, 'outcome_id': 'sale-3'} for at in (106.0, 107.0, 108.0)]
    path.write_text(path.read_text() + ''.join(json.dumps(each) + '\n' for each in twice))
    join(tmp_path, window_secs=50.0, default_reward=0.0, combine='sum')
    assert rewards(tmp_path / 'data')[100.0] == [5.0]


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'until': 4e9}, 'got until=4000000000.0, which has not come; need seconds since 1970'),
        ({'outages': ['12']}, "got the outage '12'; need BEGIN,END"),
        ({'outages': ['13,12']}, "got the outage '13,12'; need BEGIN,END"),
        ({'default_reward': float('nan')}, 'got OutcomeOptions.default_reward=nan; need a finite number'),
        ({'default_reward': 1e39}, r'got OutcomeOptions.default_reward=1e\+39; need a number'),
    ],
)
def test_wrong_options_of_a_join_are_refused(tmp_path, options, message):
    decisions(tmp_path)
    outcomes(tmp_path)
    with pytest.raises(UserError, match=message):
        join(tmp_path, window_secs=50.0, **options)


def test_outcomes_of_other_ids_are_a_warning(tmp_path):
    decisions(tmp_path)
    outcomes(tmp_path, [(name.upper(), at, reward) for name, at, reward in OUTCOMES])
    assert 'no outcome has a decision here: compare the ids of both' in join(tmp_path, default_reward=0.0)
