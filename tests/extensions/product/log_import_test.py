"""Logs in CSV, Parquet and JSON lines become episodes; each bad row is named. The program does the same."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.testing import forks
from tflearn.core import extensions
from tflearn.core.errors import UserError
from tflearn.data import arrays, columns, conversion, metadata, statistics
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product.split import split
from tflearn.files.run_dir import read_json

pa = pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
csv = pytest.importorskip('pyarrow.csv')
parquet = pytest.importorskip('pyarrow.parquet')

DEADLINE_SECS = 120.0
ENVIRONMENT = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
MAP = """
episode = 'session'
time = 'at'
reward = {column = 'clicks', missing = 0}
propensity = 'p'
action = {column = 'item', kind = 'category'}
[observation]
age = {missing = -1}
place = {columns = ['x', 'y']}
country = {kind = 'category', values = ['de', 'fr']}
prices = {length = 3, missing = 0}
seen = {kind = 'category', length = 2}
allowed = {kind = 'mask'}
"""
# Two sessions, interleaved; the second begins with its second step, and has a step twice.
ROWS = [
    ('a', 1, 0, 0.5, 'cup', 30, 1.0, 2.0, 'de', [1.5], ['cup'], ['cup', 'pot']),
    ('b', 5, 1, 0.25, 'pot', None, 3.0, 4.0, 'it', [], [], ['pot']),
    ('a', 2, None, 1.0, 'pot', 31, 5.0, 6.5, None, [1.0, 2.0, 3.0], ['pot', 'lid'], ['pot', 'lid']),
    ('b', 4, 1, 0.5, 'lid', 40, 7.0, 8.0, 'fr', [0.5, 0.25], ['lid'], ['cup', 'pot', 'lid']),
    ('b', 5, 1, 0.25, 'pot', None, 3.0, 4.0, 'it', [], [], ['pot']),
]
NAMES = ('session', 'at', 'clicks', 'p', 'item', 'age', 'x', 'y', 'country', 'prices', 'seen', 'allowed')
COUNTS = {
    'rows': 5,
    'episodes': 2,
    'steps': 4,
    'duplicate: rows': 1,
    'disorder: rows': 1,
    'missing: observation.age': 2,
    'missing: observation.country': 1,
    'missing: reward': 1,
    'unknown: observation.country': 2,
}


def run(*arguments):
    return forks.run('scripts', 'data', 'import', *arguments, env=ENVIRONMENT, timeout=DEADLINE_SECS)


def write(folder, kind, rows=ROWS, names=NAMES):
    """Writes a log; returns its path."""
    path = folder / f'log.{kind}'
    dicts = [dict(zip(names, row, strict=True)) for row in rows]
    if kind == 'parquet':
        parquet.write_table(pa.Table.from_pylist(dicts), path, row_group_size=2)
    elif kind == 'jsonl':
        path.write_text(''.join(json.dumps(row) + '\n' for row in dicts))
    else:
        lines = [
            [cell if cell is None or not isinstance(cell, list) else ' '.join(map(str, cell)) for cell in row]
            for row in rows
        ]
        cells = [','.join('' if cell is None else str(cell) for cell in row) for row in [names, *lines]]
        path.write_text('\n'.join(cells) + '\n')
    return path


def import_logs(folder, path, output='data', mapped=MAP, **options):
    """Imports a log in this process; returns what was found, in lines, and the data set's directory."""
    (folder / 'map.toml').write_text(mapped)
    found = extensions.load('import').import_logs([path], folder / 'map.toml', folder / output, **options)
    return found.splitlines(), folder / output


def episodes_of(directory):
    return list(EpisodeReader(Dataset([str(directory)])).episodes())


def test_actions_of_numbers_have_densities(tmp_path, caplog):
    """Discounts that were drawn evenly from 0 to 0.5, with a density of 2; what is no density is a bad row."""
    mapped = "reward = 'r'\npropensity = 'p'\naction = {column = 'd', low = 0, high = 0.5}\n[observation]\nx = {}"
    rows = [(0.1, 2.0, 1.0, 0.0), (0.4, 2.0, 0.0, 1.0), (0.2, 0.0, 0.0, 1.0), (0.3, 'inf', 0.0, 1.0)]
    path = write(tmp_path, 'csv', rows, ('d', 'p', 'r', 'x'))
    lines, data = import_logs(tmp_path, path, mapped=mapped, max_bad_rows=2)
    found = np.concatenate([episode['policy_info.log_probability'][:1] for episode in episodes_of(data)])
    np.testing.assert_allclose(found, np.log([2.0, 2.0]), rtol=1e-6)
    assert 'bad rows: 2' in lines and 'need a density above 0' in caplog.text


def test_a_probability_of_another_version_than_the_one_that_served_is_a_bad_row(tmp_path):
    names = ('item', 'x', 'r', 'p', 'served', 'by')
    rows = [('cup', 1.0, 1, 0.5, 7, '7'), ('pot', 2.0, 0, 0.5, 8, '7'), ('pot', 3.0, 0, 0.5, 8, None)]
    mapped = "version = 'served'\npropensity_version = 'by'\nreward = 'r'\npropensity = 'p'\n"
    mapped += "action = {column = 'item', kind = 'category'}\nobservation = {x = 'x'}"
    path = write(tmp_path, 'jsonl', rows, names)
    lines, data = import_logs(tmp_path, path, mapped=mapped, max_bad_rows=2)
    assert 'bad rows: 2' in lines and [each['observation.x'][0] for each in episodes_of(data)] == [1.0]
    with pytest.raises(UserError, match="got by = '7' in log.jsonl, row 2; need the version that has served"):
        import_logs(tmp_path, path, output='other', mapped=mapped)
    with pytest.raises(UserError, match='got propensity_version alone; need version'):
        import_logs(tmp_path, path, output='other', mapped=mapped.partition('\n')[2])


@pytest.mark.parametrize('kind', ['csv', 'parquet', 'jsonl'])
def test_every_format_gives_the_same_episodes(tmp_path, kind):
    lines, data = import_logs(tmp_path, write(tmp_path, kind))
    by_session = {len(each['reward']) + each['observation.place'][0, 0]: each for each in episodes_of(data)}
    a, b = by_session[3 + 1.0], by_session[3 + 7.0]
    assert a['observation.age'].tolist() == [30, 31, 31] and b['observation.age'].tolist() == [40, -1, -1]
    assert a['observation.place'].tolist() == [[1, 2], [5, 6.5], [5, 6.5]]
    assert (a['observation.country'].tolist(), b['observation.country'].tolist()) == ([1, 0, 0], [2, 0, 0])
    assert a['observation.prices'].tolist()[:2] == [[1.5, 0, 0], [1, 2, 3]]
    assert b['observation.prices'].tolist()[:2] == [[0.5, 0.25, 0], [0, 0, 0]]
    # Vocabularies are sorted: cup, lid, pot.
    assert a['observation.seen'].tolist()[:2] == [[1, 0], [3, 2]] and b['observation.seen'].tolist()[:2] == [
        [2, 0],
        [0, 0],
    ]
    assert a['observation.allowed'].tolist()[:2] == [[1, 0, 1], [0, 1, 1]]
    assert (a['action'].tolist()[:2], b['action'].tolist()[:2]) == ([0, 2], [1, 2])
    assert (a['reward'].tolist(), b['reward'].tolist()) == ([0, 0, 0], [1, 1, 0])
    assert a['step_type'].tolist() == [0, 1, 2] and a['discount'].tolist() == [1, 0, 1]
    np.testing.assert_allclose(np.exp(b['policy_info.log_probability'][:2]), [0.5, 0.25], rtol=1e-6)
    assert b['policy_info.time'].tolist()[:2] == [4, 5]
    counts = columns.read_metadata(data)['import']
    assert counts == COUNTS and f'duplicate: rows: {1}' in lines
    assert read_json(data / 'vocabularies.json') == {
        'action': ['cup', 'lid', 'pot'], 'observation.country': ['de', 'fr'], 'observation.seen': ['cup', 'lid', 'pot']
    }  # fmt: skip


def test_the_program_does_the_same(tmp_path):
    _, here = import_logs(tmp_path, write(tmp_path, 'csv'), output='here')
    flags = (f'--from={tmp_path}/log.csv', f'--columns={tmp_path}/map.toml', f'--vocabularies={here}')
    ended = run(*flags, f'--output={tmp_path}/data')
    assert ended.returncode == 0, ended.stderr
    assert 'duplicate: rows: 1' in ended.stdout.splitlines()
    one, other = ([path.read_bytes() for path in sorted(each.glob('*.tfrecord'))] for each in (here, tmp_path / 'data'))
    assert one == other
    ended = run(*flags, f'--output={tmp_path}/refused', '--refuse=unknown')
    assert ended.returncode == 2 and 'Traceback' not in ended.stderr
    need = "tflearn data import: error: got country = 'it' in log.csv, row 3; need a value that is not unknown, by"
    assert ended.stderr.splitlines()[-1].startswith(need)
    assert not (tmp_path / 'refused').exists()


def test_many_rows_in_many_blocks_are_equal_in_all_formats(tmp_path, monkeypatch):
    importing = extensions.load('import')
    monkeypatch.setattr(importing.tables, '_BLOCK_BYTES', 1 << 17)
    monkeypatch.setattr(importing.tables, '_BLOCK_ROWS', 1 << 11)
    monkeypatch.setattr('tflearn.extensions.product.log_import._MAX_ENCODED', 1 << 11)
    random = np.random.default_rng(7)
    n = 7_000  # more than one block of each format
    place, items = random.normal(size=(n, 2)).astype(np.float32), random.integers(0, 30, n)
    place[:, 0] = np.arange(n)
    sessions, dates = random.integers(0, 900, n), np.datetime64('2026-01-01') + np.arange(n).astype('m8[s]')
    rows = [
        (f's{s}', str(t), x, y, int(item), int(item % 2))
        for s, t, (x, y), item in zip(sessions, dates, place.astype(float).tolist(), items, strict=True)
    ]
    mapped = "episode='s'\ntime='t'\nreward='r'\naction={column='item', kind='category'}\nobservation={x='x', y='y'}"
    found, read, pieces = {}, [], importing.tables._pieces

    def counted(path):
        yield from pieces(path)
        read.append(path)

    monkeypatch.setattr(importing.tables, '_pieces', counted)
    for kind in ('csv', 'parquet', 'jsonl'):
        path = write(tmp_path, kind, rows, ('s', 't', 'x', 'y', 'item', 'r'))
        assert path.stat().st_size > 2 * importing.tables._BLOCK_BYTES or kind == 'parquet'
        _, data = import_logs(tmp_path, path, output=kind, mapped=mapped)
        found[kind] = [path.read_bytes() for path in sorted(data.glob('*.tfrecord'))]
    assert found['csv'] == found['parquet'] == found['jsonl']
    # Text is read to its end once, although its categories have to be known before its rows.
    assert read == [tmp_path / 'log.csv', tmp_path / 'log.jsonl']
    episodes = episodes_of(tmp_path / 'csv')
    assert len(episodes) == len(set(sessions)) and sum(len(each['reward']) - 1 for each in episodes) == n
    assert sum(each['reward'].sum() for each in episodes) == (items % 2).sum()
    steps = {x: (item, t) for x, item, t in zip(place[:, 0], items, dates.astype('M8[s]').astype(float), strict=True)}
    for each in episodes[::5]:
        got = zip(each['action'], each['policy_info.time'], strict=True)
        assert [steps[x] for x in each['observation.x'][:-1]] == list(got)[:-1]
        assert (np.diff(each['policy_info.time'][:-1]) >= 0).all()


BAD = {
    'too few cells': ('a,2', '2 cells', '12'),
    'no number': ('a,2,x,1,cup,1,1,1,de,1,cup,cup', "clicks = 'x'", 'a finite number'),
    'not finite': ('a,2,1,1,cup,1,inf,1,de,1,cup,cup', "x = 'inf'", 'a finite number'),
    'missing': ('a,2,1,1,cup,1,,1,de,1,cup,cup', 'x = None', 'a finite number, or `missing`'),
    'no session': (',2,1,1,cup,1,1,1,de,1,cup,cup', 'session = None', 'the episode'),
    'no time': ('a,soon,1,1,cup,1,1,1,de,1,cup,cup', "at = 'soon'", 'a time'),
    'milliseconds': ('a,1700000000000,1,1,cup,1,1,1,de,1,cup,cup', "at = '1700000000000'", 'seconds since 1970'),
    'no probability': ('a,2,1,1.5,cup,1,1,1,de,1,cup,cup', "p = '1.5'", 'a probability'),
    'no action': ('a,2,1,1,,1,1,1,de,1,cup,cup', 'item = None', 'an action of the vocabulary'),
    'unknown action': ('a,2,1,1,jug,1,1,1,de,1,cup,cup', "item = 'jug'", 'an action of the vocabulary'),
    'action not allowed': ('a,2,1,1,cup,1,1,1,de,1,cup,pot lid', "allowed = 'pot lid'", 'the action of the row among'),
    'unknown allowed action': ('a,2,1,1,cup,1,1,1,de,1,cup,cup jug', "allowed = 'cup jug'", 'actions of the voc'),
    'list too long': ('a,2,1,1,cup,1,1,1,de,1 2 3 4,cup,cup', "prices = '1 2 3 4'", 'at most 3 elements'),
    'no text': ('a,2,1,1,cup,1,1,1,\xff,1,cup,cup', "country = b'\\xff'", 'text in UTF-8'),
}


@pytest.fixture(scope='module')
def bad_log(tmp_path_factory):
    folder = tmp_path_factory.mktemp('bad')
    good = write(folder, 'csv').read_text()
    (folder / 'log.csv').write_bytes((good + '\n'.join(row for row, *_ in BAD.values()) + '\n').encode('latin1'))
    mapped = MAP.replace("item', kind = 'category'", "item', kind = 'category', values = ['cup', 'lid', 'pot']")
    (folder / 'map.toml').write_text(mapped)
    return folder


def test_every_bad_row_is_named_in_a_line(bad_log):
    flags = (f'--from={bad_log}/log.csv', f'--columns={bad_log}/map.toml')
    ended = run(*flags, f'--output={bad_log}/data', f'--max_bad_rows={len(BAD)}')
    assert ended.returncode == 0, ended.stderr
    named = {line.split('left out a row: ')[1] for line in ended.stderr.splitlines() if 'left out a row' in line}
    for row, (_, got, need) in enumerate(BAD.values(), 2 + len(ROWS)):
        assert any(line.startswith(f'got {got} in log.csv, row {row}; need {need}') for line in named), (got, named)
    assert f'bad rows: {len(BAD)}' in ended.stdout.splitlines()
    kinds = dict(line.rsplit(': ', 1) for line in ended.stdout.splitlines() if line.startswith('bad rows that need '))
    assert sum(map(int, kinds.values())) == len(BAD)
    assert kinds['bad rows that need text in UTF-8 in country'] == '1'
    # Session a has bad rows, and is left out.
    (b,) = episodes_of(bad_log / 'data')
    assert b['observation.age'].tolist() == [40, -1, -1]
    assert 'episodes left out: 1' not in ended.stdout.splitlines()  # one of a, one of the row without a session


def test_an_error_says_how_many_rows_are_bad(tmp_path):
    mapped = "reward = 'clicks'\npropensity = 'p'\naction = {kind = 'integer', high = 2}\n[observation]\nx = {}\n"
    rows = [*[('soon', 0.5, 1, 1)] * 30, *[(1, 1.3, 1, 1)] * 2, (1, '', 1, 1), *[(1, 0.5, 1, 1)] * 3]
    path = write(tmp_path, 'csv', rows, ('x', 'p', 'action', 'clicks'))
    with pytest.raises(UserError, match=r'^got x = .soon. in log.csv, row 7; .*=5 \(33 are bad up to here; '):
        import_logs(tmp_path, path, mapped=mapped, max_bad_rows=5)
    lines, _ = import_logs(tmp_path, path, mapped=mapped, max_bad_rows=33)
    assert {'bad rows: 33', 'bad rows that need the probability; leave rows without one out in p: 1'} <= {*lines}


LOADED = """
import sys
from scripts import __main__
try:
    __main__.main()
finally:
    print('tensorflow' in sys.modules)
"""


@pytest.mark.parametrize(
    ('command', 'changed', 'message'),
    [
        ('import', "tiem = 'at'", "got 'tiem' among the columns; need one of observation, action"),
        ('import', "time = 'an'", "log.csv with 0 columns 'an'; need one; it has session, at"),
        ('join', "id = 'at'\ntime = 'at'", "log.csv with 0 columns 'event_id'; need one; it has session"),
    ],
    ids=['key', 'column', 'outcome'],
)
def test_typos_of_a_column_map_are_known_before_tensorflow_is_loaded(tmp_path, command, changed, message):
    write(tmp_path, 'csv')
    (tmp_path / 'map.toml').write_text(MAP.replace("time = 'at'", changed))
    logs = ['--from=log.csv'] if command == 'import' else ['--decisions=log.csv', '--outcomes=log.csv']
    program = [sys.executable, '-c', LOADED, 'data', command, *logs, '--columns=map.toml', '--output=data']
    environment = {**ENVIRONMENT, 'PYTHONPATH': str(forks.CHECKOUT)}
    ended = subprocess.run(
        program, capture_output=True, text=True, timeout=DEADLINE_SECS, env=environment, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout) == (2, 'False\n') and message in ended.stderr


@pytest.mark.parametrize('name', BAD)
def test_a_bad_row_ends_the_import_in_one_line(bad_log, tmp_path, name):
    row, got, need = BAD[name]
    path = tmp_path / 'log.csv'
    lines = (bad_log / 'log.csv').read_bytes().split(b'\n')[: 1 + len(ROWS)]
    path.write_bytes(b'\n'.join([*lines, row.encode('latin1'), b'']))
    message = f'got {got} in log.csv, row {2 + len(ROWS)}; need {need}'
    with pytest.raises(UserError, match=f'^{re.escape(message)}'):
        import_logs(tmp_path, path, mapped=(bad_log / 'map.toml').read_text())
    assert not (tmp_path / 'data').exists()


def test_bad_lines_of_json_are_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(extensions.load('import').tables, '_BLOCK_BYTES', 256)  # so that they are not in the first one
    path = write(tmp_path, 'jsonl')
    path.write_text(path.read_text() + '{"session": "a", "clicks"\n[1]\n')
    _, data = import_logs(tmp_path, path, max_bad_rows=2)
    assert 'in log.jsonl, row 6; need a JSON object' in caplog.text
    assert "got b'[1]' (no object) in log.jsonl, row 7; need" in caplog.text
    assert len(episodes_of(data)) == 2


@pytest.mark.parametrize(
    ('refused', 'message'),
    [
        ('missing', 'got country = None in log.csv, row 4; need a value that is not missing, by --refuse'),
        ('unknown', "got country = 'it' in log.csv, row 3; need a value that is not unknown, by --refuse"),
        ('duplicate', 'got a duplicate in log.csv, row 6; need each row once, by --refuse'),
        ('disorder', 'got a disorder in log.csv, row 5; need the time after the row before it, by --refuse'),
    ],
)
def test_what_is_counted_can_be_refused(tmp_path, refused, message):
    rows = ROWS if refused != 'missing' else [(*row[:5], 1, *row[6:]) for row in ROWS]
    with pytest.raises(UserError, match=re.escape(message)):
        import_logs(tmp_path, write(tmp_path, 'csv', rows), refused=[refused])
    assert not (tmp_path / 'data').exists()


def test_the_actions_are_shown_with_their_rewards_and_rare_ones_are_named(tmp_path):
    actions = ['cup', 'pot'] * 40 + ['lid'] * 29
    lines = [json.dumps({'x': 1, 'item': each, 'p': 0.25, 'clicked': each == 'pot'}) for each in actions]
    (tmp_path / 'log.jsonl').write_text('\n'.join(lines))
    mapped = (
        "reward = 'clicked'\npropensity = 'p'\naction = {column = 'item', kind = 'category'}\n[observation]\nx = {}"
    )
    text, data = import_logs(tmp_path, tmp_path / 'log.jsonl', mapped=mapped)
    table = [
        'action: rows, mean reward, mean probability',
        '  cup: 40, 0, 0.25',
        '  pot: 40, 1, 0.25',
        '  lid: 29, 0, 0.25',
        'warning: 1 of 3 actions have fewer than 30 rows (lid): their mean rewards are chance; '
        'a policy may prefer them for it',
    ]
    assert '\n'.join(table) in '\n'.join(text)
    assert '\n'.join(table) in statistics.Statistics(Dataset([str(data)])).text()


def test_vocabularies_of_an_earlier_data_set_are_kept(tmp_path):
    import_logs(tmp_path, write(tmp_path, 'csv'))
    split(Dataset([str(tmp_path / 'data')]), tmp_path / 'parts', 0.5, by='time')
    conversion.copy(Dataset([str(tmp_path / 'data'), str(tmp_path / 'parts/train')]), tmp_path / 'copy')
    later = [row for row in ROWS if row[4] != 'cup'][:1]
    for earlier in ('data', 'parts/held_out', 'copy'):
        path, output = write(tmp_path, 'csv', later), f'after_{earlier[:4]}'
        _, data = import_logs(tmp_path, path, output, vocabularies=tmp_path / earlier)
        assert columns.read_columns(data) == columns.read_columns(tmp_path / 'data')
        assert columns.read_specs(data) == columns.read_specs(tmp_path / 'data')
        assert episodes_of(data)[0]['action'][0] == 2


@pytest.mark.parametrize(
    ('mapped', 'message'),
    [
        ('a = 1', "got 'a' among the columns; need one of observation, action"),
        ('reward = "clicks"', 'got the columns of reward; need observation, action and reward'),
        (
            MAP.replace('missing = -1', 'mising = -1'),
            "got observation.age = {'mising': -1}; need a column, or a table of",
        ),
        (
            MAP.replace("'mask'", "'masks'"),
            "got observation.allowed wrong: got Feature.kind='masks'; need one of number",
        ),
        (MAP.replace("'at'", "'when'"), "log.csv with 0 columns 'when'; need one; it has session, at, clicks"),
        (
            MAP.replace("item', kind = 'category'", "item'"),
            "got an action of another kind, with the masks ['observation.all",
        ),
        (
            MAP.replace("reward = {column = 'clicks', missing = 0}", 'outcomes = {}'),
            'got a column map whose rewards are in `outcomes`; need `tflearn data join` with their files',
        ),
        ('= 3', 'map.toml, which cannot be read (Invalid'),
    ],
)
def test_wrong_column_maps_are_refused(tmp_path, mapped, message):
    with pytest.raises(UserError, match=re.escape(message)):
        import_logs(tmp_path, write(tmp_path, 'csv'), mapped=mapped)


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('log.xls', b'a', 'log.xls; need a file that ends with one of .csv, .parquet'),
        ('log.parquet', b'PAR1', 'log.parquet, which is no parquet file'),
        ('log.csv', b'', 'log.csv, which is no csv file'),
        ('none.csv', None, 'none.csv, which cannot be read'),
    ],
)
def test_files_that_are_no_logs_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        import_logs(tmp_path, tmp_path / name)


def test_arrays_become_episodes(tmp_path):
    observation = {'size': np.arange(5, dtype=np.float32), 'kind': np.arange(10).reshape(5, 2)}
    action, reward, ids = np.array([2, 0, 1, 1, 0]), np.arange(5) + 1.0, np.array(['x', 'x', 'y', 'z', 'z'])
    info = {'log_probability': np.log(np.full(5, 0.5, np.float32))}
    truncated = np.array([False, True, False, False, False])
    data = tmp_path / 'data'
    arrays.from_arrays(data, observation, action, reward, episode=ids, truncated=truncated, policy_info=info)
    first, second, third = episodes_of(data)
    assert first['observation.size'].tolist() == [0, 1, 1] and first['action'].tolist() == [2, 0, 0]
    assert first['reward'].tolist() == [1, 2, 0] and third['reward'].tolist() == [4, 5, 0]
    assert first['discount'].tolist() == [1, 1, 1] and second['discount'].tolist() == [0, 1]
    assert second['step_type'].tolist() == [0, 2] and second['next_step_type'].tolist() == [2, 0]
    assert columns.read_specs(data).action.maximum == 2
    with pytest.raises(ValueError, match='got an episode whose steps do not stand together'):
        arrays.from_arrays(data, observation, action, reward, episode=ids[[0, 2, 1, 3, 4]])
    with pytest.raises(ValueError, match=r'got arrays of 4 and 5 rows; need as many of each'):
        arrays.from_arrays(data, observation, action[:4], reward)


def test_the_range_the_longest_session_and_the_cluster_are_kept_for_the_gate(tmp_path):
    mapped = "reward_range = [0, 2]\nlongest = 3\ncluster = 'country'\n" + MAP
    # Each session four times; the first and third are of one user, and so are the second and fourth.
    rows = [(f'{row[0]}{k}', *row[1:8], f'{row[0]}{k % 2}', *row[9:]) for k in range(4) for row in ROWS]
    _, data = import_logs(tmp_path, write(tmp_path, 'csv', rows), mapped=mapped)
    assert metadata.stated([data]) == {'low': 0.0, 'high': 2.0, 'longest': 3}
    clusters = [set(each['policy_info.cluster'].tolist()) for each in episodes_of(data)]
    assert len(clusters) == 8 and all(len(each) == 1 for each in clusters) and len(set.union(*clusters)) == 4
    split(Dataset([str(data)]), tmp_path / 'parts', 0.5, by='policy_info.cluster')
    for part in ('train', 'held_out'):
        assert metadata.stated([tmp_path / 'parts' / part]) == {'low': 0.0, 'high': 2.0, 'longest': 3}
        missing = metadata.stated([tmp_path / 'parts' / part], metadata.MISSING)
        assert missing == {'observation.age': -1, 'observation.prices': 0}
    _, other = import_logs(tmp_path, write(tmp_path, 'csv', rows), 'other', MAP)
    assert metadata.stated([data, other]) == {} == metadata.stated([other])


@pytest.mark.parametrize(
    ('line', 'error'),
    [
        ('reward_range = [1, 0]', r'got reward_range = \[1, 0\]; need two numbers, the least one first'),
        ('greatest_weight = 0', 'got greatest_weight = 0; need a number above 0'),
        ("reward_range = '0, 1'", "got reward_range = '0, 1'; need two numbers, the least one first"),
        ('reward_range = [0, 1]\nreturn_range = [0, 2]', 'got reward_range and return_range; need one of them'),
        ('longest = 0', 'got longest = 0; need the most steps of an episode'),
    ],
)
def test_a_wrong_range_is_refused(tmp_path, line, error):
    with pytest.raises(ValueError, match=error):
        import_logs(tmp_path, write(tmp_path, 'csv'), mapped=f'{line}\n{MAP}')


PARTS = """
reward_range = [-1, 1]
propensity = 'p'
action = {kind = 'integer', high = 1}
[parts]
click = 'click'
cost = {column = 'cost', low = 0, high = 2}
[observation]
x = {}
"""


def test_a_reward_is_the_weighted_sum_of_parts(tmp_path):
    rows = [(1, 0.0, 0.5), (0, 2.0, 0.25), (1, 'much', 0.5)]
    lines = ['x,action,p,click,cost', *(f'{i},{i % 2},{p},{click},{cost}' for i, (click, cost, p) in enumerate(rows))]
    (tmp_path / 'log.csv').write_text('\n'.join(lines) + '\n')
    (tmp_path / 'weights.json').write_text('{"click": 2, "cost": -0.5}')
    for name, weights in (('file', "'weights.json'"), ('table', '{click = 2, cost = -0.5}')):
        (tmp_path / 'map.toml').write_text(f'weights = {weights}\n{PARTS}')
        output = tmp_path / name
        extensions.load('import').import_logs([tmp_path / 'log.csv'], tmp_path / 'map.toml', output, max_bad_rows=1)
        found = list(EpisodeReader(Dataset([str(output)])).episodes())
        assert [each['reward'][0] for each in found] == [2.0, -1.0]
        assert [each['policy_info.part_cost'][0] for each in found] == [0.0, 2.0]
        unknown = EpisodeReader(Dataset([str(output / 'unknown')]), need_finite=False)
        assert unknown.num_episodes == 1, 'it is a decision all the same'
        assert metadata.stated([output]) == {'low': -1.0, 'high': 1.0, 'part.cost.low': 0, 'part.cost.high': 2}


@pytest.mark.parametrize(
    ('given', 'error'),
    [
        ('weights = {clicks = 1}', "got weights = {'clicks': 1}; need numbers by names of parts: click, cost"),
        ("weights = {click = 'one'}", "got weights = {'click': 'one'}; need numbers by names of parts"),
        ("weights = 'none.json'", 'got weights = .none.json., which cannot be read'),
        ("weights = {click = 1}\nreward = 'click'", 'need a table, and reward or weights, not both'),
        ('', 'need observation, action and reward'),
    ],
)
def test_wrong_weights_are_refused(tmp_path, given, error):
    (tmp_path / 'log.csv').write_text('x,action,p,click,cost\n')
    (tmp_path / 'map.toml').write_text(f'{given}\n{PARTS}')
    with pytest.raises(UserError, match=error):
        extensions.load('import').import_logs([tmp_path / 'log.csv'], tmp_path / 'map.toml', tmp_path / 'data')
