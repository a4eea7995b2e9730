"""The same table gives the same rows in every format, by whatever program it was written; or its bad rows are named."""

import datetime
import importlib
import itertools
import json
import re

import numpy as np
import pytest

from tflearn.core import extensions
from tflearn.core.errors import UserError
from tflearn.extensions.product import column_map, log_import, log_report, log_rows, table_values

pa = pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
csv = pytest.importorskip('pyarrow.csv')
feather = pytest.importorskip('pyarrow.feather')
parquet = pytest.importorskip('pyarrow.parquet')

MAP = """
id = 'id'
time = 'at'
reward = {column = 'clicks', missing = 0}
action = {column = 'item', kind = 'category'}
[observation]
row = 'row'
x = {missing = -1}
tag = {kind = 'category'}
prices = {length = 3, missing = 0}
words = {kind = 'category', length = 2}
"""
TEXTS = ['de', 'a b', 'a,b', 'say "no"', 'two\nlines', 'é', '007', '2.10', 'true', '3', "it's", '[1', 'nan', '5e3']


def with_nulls(random, values, share=0.1):
    # One stays: a category has a value.
    return [values[0], *(None if random.random() < share else value for value in values[1:])]


def categories(random, n):
    """Returns a column of categories of some type."""
    kind = random.integers(6)
    if kind == 0:
        return pa.array(with_nulls(random, random.choice(TEXTS, n).tolist()))
    if kind == 1:
        return pa.array(random.integers(-3, 4, n).tolist())
    if kind == 2:
        return pa.array(with_nulls(random, random.integers(0, 5, n).tolist()))  # floats in pandas
    if kind == 3:
        return pa.array(with_nulls(random, random.choice([1e-7, 2.5, 3.0, -0.0, 1e15, 0.1, 123456.75], n).tolist()))
    if kind == 4:
        return pa.array(with_nulls(random, (random.random(n) < 0.5).tolist()))
    return pa.array([2**63 + int(i) for i in random.integers(0, 9, n)], pa.uint64())


def ids(random, n):
    number = random.permutation(n).tolist()
    kind = random.integers(4)
    if kind == 0:
        return pa.array([f'visite-é {i}' for i in number])
    if kind == 1:
        return pa.array(number)
    if kind == 2:
        return pa.array([2**63 + i for i in number], pa.uint64())
    return pa.array([None, *number[1:]], pa.uint64())  # floats in pandas; one row is a bad one


def times(random, n):
    seconds = random.integers(0, 10**9, n)
    kind = random.integers(4)
    if kind == 0:
        return pa.array(seconds)
    if kind == 1:
        return pa.array(seconds + 0.25)
    micros = [datetime.datetime(2026, 1, 1) + datetime.timedelta(microseconds=int(s)) for s in seconds]
    return pa.array(micros, pa.timestamp('us' if kind == 2 else 'ns'))


def random_table(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 40))
    # Six places: pandas writes 15 of a number in JSON.
    x = (random.normal(size=n) * 10.0 ** random.integers(-3, 5, n)).round(6)
    if random.random() < 0.2:
        x[random.integers(n)] = 1e39  # beyond float32
    lengths = random.integers(0, 4, (2, n))
    lengths[1, 0] = 1
    return pa.table(
        {
            'row': np.arange(n),
            'id': ids(random, n),
            'at': times(random, n),
            'clicks': pa.array(with_nulls(random, random.integers(0, 3, n).tolist())),
            'item': categories(random, n),
            'x': pa.array(with_nulls(random, x.tolist())),
            'tag': categories(random, n),
            'prices': pa.array([random.normal(size=k).round(6).tolist() for k in lengths[0]], pa.list_(pa.float64())),
            'words': pa.array([random.choice(TEXTS, min(k, 2)).tolist() for k in lengths[1]], pa.list_(pa.string())),
            'unused': pa.array(random.choice(TEXTS, n).tolist()),
        }
    )


def flat(table):
    """Returns the table with lists in JSON, for CSV."""
    for name in ('prices', 'words'):
        table = table.set_column(
            table.column_names.index(name), name, pa.array([json.dumps(each) for each in table[name].to_pylist()])
        )
    return table


def by_pyarrow(table, path):
    csv.write_csv(flat(table), path('csv'))
    parquet.write_table(table, path('parquet'), row_group_size=7)
    feather.write_feather(table, path('arrow'))
    rows = table.to_pylist() if table.schema.field('at').type != pa.timestamp('ns') else None
    micros = table.column_names.index('at'), 'at', table['at'].cast(pa.string())
    rows = rows or table.set_column(*micros).to_pylist()
    path('jsonl').write_text(''.join(json.dumps(row, default=str) + '\n' for row in rows))


def by_pandas(table, path):
    flat(table).to_pandas().to_csv(path('csv'), index=False)
    table.to_pandas().to_parquet(path('parquet'), index=False)
    given = {'orient': 'records', 'lines': True, 'double_precision': 15, 'date_format': 'iso', 'date_unit': 'us'}
    table.to_pandas().to_json(path('jsonl'), **given)


def by_polars(table, path):
    import polars

    frame = polars.from_arrow(table)
    polars.from_arrow(flat(table)).write_csv(path('csv'))
    frame.write_parquet(path('parquet'))
    frame.write_ndjson(path('jsonl'))
    frame.write_ipc(path('arrow'))


def by_duckdb(table, path):
    import duckdb

    flattened = flat(table)
    with duckdb.connect() as connection:
        connection.register('whole', table)
        connection.register('flattened', flattened)
        connection.execute(f"COPY flattened TO '{path('csv')}' (HEADER)")
        connection.execute(f"COPY whole TO '{path('parquet')}' (FORMAT parquet)")
        connection.execute(f"COPY whole TO '{path('jsonl')}' (FORMAT json)")


WRITERS = {'pyarrow': by_pyarrow, 'pandas': by_pandas, 'polars': by_polars, 'duckdb': by_duckdb}


def encoded(path, mapped):
    """Returns the rows of a log by their numbers in the table, and how many are bad ones."""
    report = log_report.Report(max_bad_rows=10**6)
    words = log_import._vocabularies([path], mapped, None)
    encoder = log_rows.RowEncoder(mapped, words, report)
    rows = np.concatenate(list(log_import._encoded([path], mapped, encoder)))
    found = {}
    for row in rows[~rows['bad']]:
        step = {name: row[name].tolist() for name in rows.dtype.names if name not in ('row', 'key', 'bad')}
        step['action'] = words['action'][step['action']]
        for name in ('observation.tag', 'observation.words'):
            step[name] = [words[name][i - 1] if i else None for i in np.atleast_1d(step[name])]
        found[int(step['observation.row'])] = step
    return found, report.counts['bad rows']


def check(seed, folder, names):
    """Compares all formats of a random table by the programs that are installed; returns how many have no bad row."""
    (folder / 'map.toml').write_text(MAP)
    table, found, mapped = random_table(seed), {}, column_map.read_map(folder / 'map.toml')
    for name in names:
        (folder / name).mkdir()
        WRITERS[name](table, lambda kind, name=name: folder / name / f'log.{kind}')
        for path in sorted((folder / name).iterdir()):
            found[name, path.name] = encoded(path, mapped)
    for key, (rows, bad) in found.items():
        assert len(rows) + bad == len(table), f'{seed}: {key}: {len(rows)} of {len(table)} rows, {bad} bad ones'
    for one, other in itertools.combinations(found, 2):
        for row in found[one][0].keys() & found[other][0].keys():
            both = found[one][0][row], found[other][0][row]
            assert both[0] == both[1], f'{seed}: row {row} of {one} and {other}: {both}'
    return sum(bad == 0 for _, bad in found.values())


def installed():
    return [name for name in WRITERS if importlib.util.find_spec(name)]


def test_random_tables_give_the_same_rows_in_every_format(tmp_path):
    clean = 0
    for seed in range(30):
        (tmp_path / str(seed)).mkdir()
        clean += check(seed, tmp_path / str(seed), installed())
    assert clean > 20


@pytest.mark.slow
def test_a_thousand_random_tables_give_the_same_rows_in_every_format(tmp_path):
    for seed in range(1_000):
        (tmp_path / str(seed)).mkdir()
        check(seed, tmp_path / str(seed), installed())


SMALL = "id = 'id'\nreward = 'clicks'\naction = {column = 'item', kind = 'category'}\nobservation = {x = 'x'}"
GOOD = {'id': 'a', 'clicks': 1, 'item': 'cup', 'x': 0.5}


def import_small(folder, path, mapped=SMALL, output='data', **options):
    (folder / 'map.toml').write_text(mapped)
    found = extensions.load('import').import_logs([path], folder / 'map.toml', folder / output, **options)
    return dict(line.split(': ') for line in found.splitlines() if line.count(': ') == 1)


def test_a_quote_that_is_not_closed_costs_its_own_row(tmp_path, caplog, monkeypatch):
    """In a column that nobody uses, in a log of several blocks, some of whose cells have quotes of their own."""
    lines = [f'{i},1,cup,0.5,"a ""b"", c"' if i % 1_000 == 7 else f'{i},1,cup,0.5,note' for i in range(20_000)]
    lines[5_000], lines[7_000] = '5000,1,cup,0.5,"two', 'lines"'
    lines[100], lines[19_999] = '100,1,cup,0.5,"note', '19999,1,cup,0.5,"note'
    path = tmp_path / 'log.csv'
    path.write_text('\n'.join(['id,clicks,item,x,note', *lines]) + '\n')
    monkeypatch.setattr(extensions.load('import').tables, '_BLOCK_BYTES', 1 << 17)
    assert path.stat().st_size > 3 << 17
    message = "got b'100,1,cup,0.5,\"note' in log.csv, row 102; need quotes around a cell"
    with pytest.raises(UserError, match=re.escape(message)):
        import_small(tmp_path, path)
    found = import_small(tmp_path, path, max_bad_rows=4)
    # Two lines that are no row, and two ends of one that is no cell: between them all are rows.
    assert (found['bad rows'], found['episodes']) == ('4', '19996')
    assert 'row 5002' in caplog.text and 'row 7002' in caplog.text and 'row 20001' in caplog.text


def test_a_cell_of_several_lines_is_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(extensions.load('import').tables, '_BLOCK_BYTES', 64)
    path = tmp_path / 'log.csv'
    rows = ''.join(f'{i},1,"cup{i % 2}",0.5,"a\r\n\nb, ""c"""\r\n' for i in range(50))
    path.write_bytes(f'id,clicks,item,x,note\r\n{rows}z,1,"cup'.encode())
    found = import_small(tmp_path, path, max_bad_rows=1)
    rows = '51 = 50 good + 1 that need quotes around a cell, and two for each one in it'
    assert (found['rows'], found['episodes'], found['bad rows']) == (rows, '50', '1')


def bad(name, value, need, got=None):
    return pytest.param(name, value, need, got, id=f'{name} {value!s:.20}')


@pytest.mark.parametrize(
    ('name', 'value', 'need', 'got'),
    [
        bad('x', pa.array([1e39]), 'a number of float32, at most 3.4e+38', '1e+39'),
        bad('clicks', pa.array([-1e39]), 'a number of float32', '-1e+39'),
        bad('id', pa.array([2.0**63]), 'the id', '9.223372036854776e+18'),
        bad('item', pa.array([{'name': 'cup'}]), 'a number or text', "{'name': 'cup'}"),
        bad('item', pa.array([['cup']]), 'a number or text', "['cup']"),
        bad('x', pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), 'a number or text', '[1.0, 2.0]'),
        bad('id', pa.array([b'\xff']), 'text in UTF-8', "b'\\xff'"),
        bad('at', pa.array([1], pa.time64('ns')), 'a time, as a number or by ISO 8601', None),
        bad('at', pa.array([1], pa.duration('ns')), 'a time, as a number or by ISO 8601', None),
        bad('count', pa.array([2**53 + 2]), 'an integer from 0 to', '9007199254740994'),
        # 2^53 + 1 is this float, too.
        bad('count', pa.array([2.0**53]), 'an integer from 0 to', '9007199254740992.0'),
        bad('id', pa.array([2.0**53]), 'the id', '9007199254740992.0'),
        bad('tag', pa.array([2.0**53]), 'a float below 2^53', '9007199254740992.0'),
        bad('tag', pa.array(['1e+17']), 'a float below 2^53', "'1e+17'"),
    ],
)
def test_what_cannot_be_read_exactly_is_a_bad_row_by_name(tmp_path, name, value, need, got):
    more = {'at': 5, 'count': 3, 'tag': 'a'}
    rows = pa.Table.from_pylist([{**GOOD, **more, 'id': other} for other in 'bc'])
    row = pa.Table.from_pylist([{**GOOD, **more}])
    row = row.set_column(row.column_names.index(name), name, value)
    # One type for a column: the good values are null in it.
    nulls = rows.set_column(rows.column_names.index(name), name, pa.nulls(2, value.type))
    feather.write_feather(pa.concat_tables([row, nulls]), tmp_path / 'log.arrow')
    mapped = SMALL.replace("'category'}", "'category', values = ['cup']}")
    mapped = mapped.replace(
        "x = 'x'", "x = 'x', count = {kind = 'integer', high = 9e18}, tag = {kind = 'category', values = ['a']}"
    )
    with pytest.raises(UserError, match=re.escape(f'in log.arrow, row 1; need {need}')) as raised:
        import_small(tmp_path, tmp_path / 'log.arrow', f"time = 'at'\n{mapped}")
    assert f'got {name} = {got or ""}' in str(raised.value)


def test_wide_integers_nested_objects_and_half_characters_of_json_are_no_tracebacks(tmp_path, caplog):
    lines = [GOOD, {**GOOD, 'id': 2**64 + 1}, {**GOOD, 'id': 2**64 + 2}, {**GOOD, 'id': 7.0}, {**GOOD, 'x': {'y': 1}}]
    path = tmp_path / 'log.jsonl'
    path.write_text(''.join(json.dumps(line) + '\n' for line in [*lines, {**GOOD, 'id': '\ud800'}]))
    found = import_small(tmp_path, path, max_bad_rows=2)
    assert (found['episodes'], found['bad rows']) == ('4', '2')
    for bad in ('x = \'{"y": 1}\' in log.jsonl, row 5', r"id='\ud800' in log.jsonl, row 6"):
        assert bad in caplog.text
    path.write_text(''.join(json.dumps({**GOOD, 'x': {'y': i}}) + '\n' for i in range(2)))
    with pytest.raises(UserError, match=re.escape("got x = {'y': 0} in log.jsonl, row 1; need a number or text")):
        import_small(tmp_path, path, output='other')


def test_a_first_float_rounds_no_integer_of_json(tmp_path):
    lines = [{**GOOD, 'item': item, 'id': i} for i, item in enumerate([0.5, 2**53, 2**53 + 1])]
    (tmp_path / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    with pytest.raises(UserError, match='got item = 9007199254740992.0 in log.jsonl, row 2; need an action'):
        import_small(tmp_path, tmp_path / 'log.jsonl')


def test_what_is_no_table_is_named_although_it_has_no_category(tmp_path):
    (tmp_path / 'log.csv').write_bytes(b'id,clicks,item,x\ra,1,cup,0.5\r')
    with pytest.raises(UserError, match=r"log.csv, which is no csv file \(b'id,clicks,item,x\\r"):
        import_small(tmp_path, tmp_path / 'log.csv')
    (tmp_path / 'log.json').write_text(json.dumps([GOOD]))
    with pytest.raises(
        UserError, match=r"got no value of action in 'item' \(row 1 of log.json: .*need a JSON object\)"
    ):
        import_small(tmp_path, tmp_path / 'log.json')


@pytest.mark.parametrize('kind', ['csv', 'jsonl'])
def test_utf_16_is_called_so(tmp_path, kind):
    path = tmp_path / f'log.{kind}'
    path.write_text('id,clicks,item,x\na,1,cup,0.5\n', 'utf-16')
    with pytest.raises(UserError, match=r'in UTF-16; need UTF-8'):
        import_small(tmp_path, path)


def test_a_list_in_json_keeps_its_elements_whole(tmp_path):
    path = tmp_path / 'log.csv'
    path.write_text('clicks,item,x,seen\n1,cup,1,"[""tea pot"", ""a,b""]"\n0,cup,2,lid\n0,cup,3,"[""lid"","\n')
    mapped = "reward = 'clicks'\naction = {column = 'item', kind = 'category'}\n[observation]\nx = 'x'\n"
    mapped += "seen = {kind = 'category', length = 2}"
    with pytest.raises(UserError, match='row 4; need a list in JSON, or elements with spaces'):
        import_small(tmp_path, path, mapped)
    import_small(tmp_path, path, mapped, max_bad_rows=1)
    words = json.loads((tmp_path / 'data' / 'vocabularies.json').read_text())
    assert words['observation.seen'] == ['a,b', 'lid', 'tea pot']


def test_spellings_of_a_value_are_one_category_and_names_are_none(tmp_path):
    read = lambda values: table_values.texts(pa.array(values)).to_pylist()  # noqa: E731
    assert read(['3', '3.0', 'True', 'true', '1e-07', '1e-7', '1E-7']) == ['3', '3', 'true', 'true', *['1e-07'] * 3]
    assert read([3.0, 1e-7, 0.1, None]) == ['3', '1e-07', '0.1', None] and read([True]) == ['true']
    names = ['007', '2.10', '5e3', '12e5', '3.00', '1_000', '+3', '9223372036854775809', '1.2.3', 'truE']
    assert read(names) == names


def test_an_object_in_place_of_a_list_is_a_bad_value(tmp_path):
    path = tmp_path / 'log.jsonl'
    path.write_text(json.dumps({'tags': {'x': 1}}) + '\n')
    tables = extensions.load('import').tables
    ((_, block),) = tables.read([path], tables.Columns(['tags'], [], {'tags': 1}))
    assert block.bad == {0: ("tags = {'x': 1}", 'a list of numbers or texts')}
