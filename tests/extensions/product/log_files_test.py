"""A log of many files: directories, partitions, packed files, separators, and columns that only newer files have."""

import gzip
import json
import pathlib
import re

import numpy as np
import pytest

from tests.extensions.product.log_import_test import episodes_of
from tests.extensions.product.outcomes_test import CLICKS, MANY, decisions, join, outcomes, rewards
from tflearn.core import extensions
from tflearn.core.errors import UserError
from tflearn.data import columns
from tflearn.extensions.product import log_files

pa = pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
csv = pytest.importorskip('pyarrow.csv')
feather = pytest.importorskip('pyarrow.feather')
parquet = pytest.importorskip('pyarrow.parquet')

MAP = """
id = 'id'
time = 'date'
reward = 'clicks'
action = {column = 'item', kind = 'category'}
[observation]
x = 'x'
country = {kind = 'category'}
"""
DAYS = ['2026-11-01', '2026-11-02', '2026-11-03', '2026-11-04', '2026-11-05', '2026-11-06']


def import_logs(folder, paths, output='data', mapped=MAP, **options):
    """Imports logs; returns the bytes of all files of episodes, what was counted, and the lines that were printed."""
    (folder / 'map.toml').write_text(mapped)
    text = extensions.load('import').import_logs(paths, folder / 'map.toml', folder / output, **options)
    found = [path.read_bytes() for path in sorted((folder / output).glob('*.tfrecord'))]
    return found, columns.read_metadata(folder / output)['import'], text


def table(num_rows=120):
    random = np.random.default_rng(3)
    return pa.table(
        {
            'date': np.repeat(DAYS, num_rows // len(DAYS)),
            'id': [f'visit "{i}"' for i in range(num_rows)],
            'clicks': random.integers(0, 2, num_rows),
            'item': random.choice(['cup', 'tea, pot; large', 'two\nlines'], num_rows),
            'x': random.normal(size=num_rows).round(6),
            'country': ['de', 'fr'] * (num_rows // 2),
        }
    )


def write(rows, path, separator=','):
    """Writes a table by the ending of a name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == '.parquet':
        parquet.write_table(rows, path)
    elif path.suffix == '.arrow':
        feather.write_feather(rows, path)
    else:
        content = ''.join(json.dumps(row) + '\n' for row in rows.to_pylist()).encode()
        if '.jsonl' not in path.suffixes:
            sink = pa.BufferOutputStream()
            csv.write_csv(rows, sink, csv.WriteOptions(delimiter=separator))
            content = sink.getvalue().to_pybytes()
        if path.suffix == '.gz':
            content = gzip.compress(content)
        elif path.suffix == '.zst':
            # In two frames, as programs write that append.
            half = len(content) // 2
            content = b''.join(pa.compress(each, 'zstd', asbytes=True) for each in (content[:half], content[half:]))
        path.write_bytes(content)
    return path


def test_a_directory_of_partitions_in_all_formats_gives_what_one_file_does(tmp_path):
    rows, root = table(), tmp_path / 'log'
    expected, counts, _ = import_logs(tmp_path, [write(rows, tmp_path / 'log.csv')], 'one')
    endings = ('csv.zst', 'parquet', 'jsonl.gz', 'arrow', 'tsv', 'jsonl.zst')
    for i, (day, ending) in enumerate(zip(DAYS, endings, strict=True)):
        part = rows.slice(20 * i, 20).drop(['date'])
        path = root / f'date={day}' / f'part.{ending}'
        write(part.slice(0, 12), path, '\t' if ending == 'tsv' else ',')
        write(part.slice(12), path.with_name(f'part2.{ending}'), '\t' if ending == 'tsv' else ',')
    for hidden in ('_SUCCESS', '.part.crc', '_temporary/part.csv', f'date={DAYS[0]}/.part.csv'):
        (root / hidden).parent.mkdir(exist_ok=True)
        (root / hidden).write_text('x')
    found, same, _ = import_logs(tmp_path, [root], 'all')
    assert (found, same) == (expected, counts) and same['rows'] == 120
    # A file of a directory that is named too is read once.
    found, _, _ = import_logs(tmp_path, [root, path], 'again')
    assert found == expected


def test_partitions_are_decoded_and_a_column_of_the_file_itself_counts_first(tmp_path):
    for i, name in enumerate(('country=c%C3%B4te%20ivoire', 'country=__HIVE_DEFAULT_PARTITION__')):
        write(table().slice(10 * i, 10).drop(['country']), tmp_path / 'log' / name / 'part.csv')
    write(table().slice(20, 10), tmp_path / 'log' / 'country=es' / 'part.jsonl')
    _, counts, _ = import_logs(tmp_path, [tmp_path / 'log'])
    words = json.loads((tmp_path / 'data' / 'vocabularies.json').read_text())
    assert words['observation.country'] == ['côte ivoire', 'de', 'fr']
    assert counts['rows'] == 30 and counts['missing: observation.country'] == 10


@pytest.mark.parametrize('separator', [';', '\t', ',', '|'])
def test_separators_are_recognised_or_stated(tmp_path, separator):
    rows = table()
    expected, _, _ = import_logs(tmp_path, [write(rows, tmp_path / 'comma.csv')], 'one')
    path = write(rows, tmp_path / 'log.csv', separator)
    for output, line in (('two', ''), ('three', f"separator = '{separator}'\n")):
        if line or separator != '|':
            assert import_logs(tmp_path, [path], output, line + MAP)[0] == expected
    if separator == '|':
        with pytest.raises(UserError, match='need names in its first line'):
            import_logs(tmp_path, [path], 'four')


def test_a_quote_that_is_not_closed_costs_its_own_row_with_other_separators(tmp_path):
    path = tmp_path / 'log.csv'
    lines = ['id;clicks;item;x;note', 'a;1;cup;0.5;"note', 'b;1;"c;p";0.5;"a, ""b"""', 'c;1;cup;0.5;x,"y"', 'd;1;cup']
    lines += [';1;cup;0.5;x', ';0;cup;0.5;x']
    path.write_text('\n'.join(lines) + '\n')
    mapped = "id = 'id'\nreward = 'clicks'\naction = {column = 'item', kind = 'category'}\nobservation = {x = 'x'}"
    _, counts, text = import_logs(tmp_path, [path], mapped=mapped, max_bad_rows=4)
    # In CSV a quote inside of a cell that does not begin with one is no quote that closes.
    assert (counts['rows'], counts['bad rows'], counts['episodes']) == (6, 4, 2) and 'duplicate: rows' not in counts
    quotes = 'quotes around a cell, and two for each one in it'
    expected = f'rows: 6 = 2 good + 1 that need 5 cells + 1 that need {quotes} + 2 that need the id in id'
    assert expected in text.splitlines()


def test_an_ambiguous_separator_is_an_error_by_name(tmp_path):
    path = tmp_path / 'log.csv'
    path.write_text('id,clicks;item,x\na,1;cup,0.5\n')
    mapped = "reward = 'clicks;item'\naction = {column = 'id', kind = 'category'}\nobservation = {x = 'x'}"
    error = f"got {path} with ',' and ';' in its first line; need one separator; state it in the column map"
    with pytest.raises(UserError, match=re.escape(error)):
        import_logs(tmp_path, [path], mapped=mapped)
    mapped = "separator = ','\n" + mapped.replace("'clicks;item'", "{column = 'clicks;item', missing = 0}")
    with pytest.raises(UserError, match="got clicks;item = '1;cup' in log.csv, row 2; need a finite number"):
        import_logs(tmp_path, [path], mapped=mapped)


@pytest.mark.parametrize('separator', ["';;'", '"\\n"', '7', "'é'"])
def test_a_separator_that_is_none_is_refused(tmp_path, separator):
    with pytest.raises(UserError, match='got separator = .*; need one character of ASCII'):
        import_logs(tmp_path, [write(table(), tmp_path / 'log.csv')], mapped=f'separator = {separator}\n{MAP}')
    decisions(tmp_path)
    mapped = "action = {kind = 'integer', high = 2}\nobservation = {x = 'observation'}\n"
    with pytest.raises(UserError, match='got separator = .*; need one character of ASCII'):
        join(tmp_path, mapped=f'outcomes = {{separator = {separator}}}\n{mapped}')


@pytest.mark.parametrize('ending', ['csv', 'parquet', 'jsonl', 'arrow', 'tsv.zst'])
def test_columns_that_only_newer_files_have_are_null_in_older_ones_and_counted(tmp_path, ending):
    rows, separator = table(), '\t' if 'tsv' in ending else ','
    write(rows.slice(0, 40).drop(['x', 'country']), tmp_path / 'log' / f'2025.{ending}', separator)
    write(rows.slice(40), tmp_path / 'log' / f'2026.{ending}', separator)
    mapped = MAP.replace("x = 'x'", 'x = {missing = -1}')
    _, counts, text = import_logs(tmp_path, [tmp_path / 'log'], mapped=mapped)
    expected = {f'rows of files without the column {name}': 40 for name in ('x', 'country')}
    assert expected.items() <= counts.items() and 'rows of files without the column x: 40' in text
    assert (counts['missing: observation.x'], counts['missing: observation.country']) == (40, 40)
    found = [each['observation.x'][0] for each in episodes_of(tmp_path / 'data')]
    assert sorted(found) == sorted(np.float32([-1.0] * 40 + rows['x'].to_pylist()[40:]))
    # Where the map has no number for one that is missing, each row is a bad one.
    named = re.escape(f'got x = None in 2025.{ending}, row {2 if "sv" in ending else 1}; need a finite number')
    with pytest.raises(UserError, match=named):
        import_logs(tmp_path, [tmp_path / 'log'], 'other')
    with pytest.raises(UserError, match=re.escape(f"2025.{ending} with 0 columns 'y'; need one; it has date, id")):
        import_logs(tmp_path, [tmp_path / 'log'], 'third', MAP.replace("x = 'x'", "x = 'y'"))


def test_a_column_that_begins_in_the_midst_of_json_lines_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(extensions.load('import').tables, '_BLOCK_BYTES', 256)
    rows = table().to_pylist()
    path = tmp_path / 'log.jsonl'
    path.write_text(''.join(json.dumps({k: v for k, v in row.items() if k != 'x' or i > 60}) + '\n'
                            for i, row in enumerate(rows)))  # fmt: skip
    write(table().slice(0, 1), tmp_path / 'other.jsonl')  # it has x from its first row on
    _, counts, _ = import_logs(
        tmp_path, [path, tmp_path / 'other.jsonl'], mapped=MAP.replace("x = 'x'", 'x = {missing = -1}')
    )
    assert (counts['rows'], counts['missing: observation.x'], counts['duplicate: rows']) == (121, 61, 1)


def test_what_a_directory_must_not_have_is_named(tmp_path):
    root = tmp_path / 'log'
    write(table(), root / 'part.csv')
    cases = {
        'notes.md': (b'x', 'notes.md; need a file that ends with one of .csv, .parquet'),
        'part.parquet.gz': (b'x', 'part.parquet.gz; need a file that ends with one of'),
        'cut.csv.zst': (pa.compress(b'a,b\n' * 9_999, 'zstd', asbytes=True)[:-9], 'cut.csv.zst, which cannot be read'),
        'wrong.csv.gz': (b'x,y', 'wrong.csv.gz, which cannot be read'),
    }
    for name, (content, message) in cases.items():
        (root / name).write_bytes(content)
        with pytest.raises(UserError, match=re.escape(message)):
            import_logs(tmp_path, [root])
        (root / name).unlink()
    (tmp_path / 'empty').mkdir()
    with pytest.raises(UserError, match=r'got --from=.*empty without a file; need'):
        import_logs(tmp_path, [tmp_path / 'empty'])
    import_logs(tmp_path, [root])


def test_equal_names_in_several_directories_are_told_apart(tmp_path):
    paths = [write(table(), tmp_path / 'log' / name / 'part.csv') for name in ('a', 'b')]
    text = paths[1].read_text()
    paths[1].write_text(text + '2026-11-07,z,x,cup,1,de\n')
    number = 1 + text.count('\n')
    with pytest.raises(UserError, match=re.escape(f"got clicks = 'x' in {paths[1]}, row {number}; need a finite")):
        import_logs(tmp_path, [tmp_path / 'log'])


@pytest.mark.parametrize('partition', ['date=2026-11-0{}', 'year=2026/month=11/day={}'])
def test_partitions_by_time_are_one_source_of_outcomes(tmp_path, partition):
    decisions(tmp_path, MANY)
    for i in range(2):
        folder = tmp_path / 'clicks' / partition.format(i + 1)
        folder.mkdir(parents=True)
        outcomes(folder, CLICKS[900 * i : 900 * (i + 1)], 'part-0.jsonl')
    join(tmp_path, files=[tmp_path / 'clicks'], window_secs=400.0, default_reward=0.0)
    found = rewards(tmp_path / 'data')
    # The log ends with the newest decision, 2999: the older part is no slow source.
    assert max(found) == 2599.0 and set(map(tuple, found.values())) == {(1.0,)}


def test_partitions_by_anything_else_are_sources_of_their_own(tmp_path):
    decisions(tmp_path, MANY)
    for i, name in enumerate(('source=web', 'source=shop')):
        (tmp_path / 'clicks' / name).mkdir(parents=True)
        outcomes(tmp_path / 'clicks' / name, CLICKS[: 1200 + 600 * i][i::2], 'part-0.jsonl')
    join(tmp_path, files=[tmp_path / 'clicks'], window_secs=400.0, default_reward=0.0)
    # The newest outcome of the slower one is of 2498.
    assert max(rewards(tmp_path / 'data')) == 2098.0


@pytest.mark.parametrize(
    ('fast', 'slow'), [('clicks_web', 'clicks_app'), ('clicks-2026-11-01-web.1', 'clicks-2026-11-01-app.1')]
)
def test_files_whose_names_differ_in_a_word_are_sources_of_their_own(tmp_path, fast, slow):
    decisions(tmp_path, MANY)
    files = [
        outcomes(tmp_path, CLICKS[1:1800:2], f'{fast}.jsonl'),
        outcomes(tmp_path, CLICKS[:1200:2], f'{slow}.jsonl'),
    ]
    join(tmp_path, files=files, window_secs=400.0, default_reward=0.0)
    # The newest outcome of the slower one is of 2498: no decision of it is 0 since its outcome is not there yet.
    found = rewards(tmp_path / 'data')
    assert max(found) == 2098.0 and set(map(tuple, found.values())) == {(1.0,)}


def test_numbers_and_random_names_of_files_are_no_words():
    names = ['clicks-1.jsonl', 'clicks-2.jsonl.gz', 'clicks_2026-11-01T07.csv', 'clicks-00000-fade-4a1f.snappy.parquet']
    found = {log_files.source(pathlib.Path('log') / name) for name in names[:3]}
    assert found == {'log/clicks*'} and log_files.source(pathlib.Path(names[3])) == 'clicks*snappy*'
    servers = [f'outcomes-20261101T070000.00000000{i}Z-{name}-1.jsonl' for i, name in enumerate(('web', 'app'))]
    assert {log_files.source(pathlib.Path(name)) for name in servers} == {'outcomes*'}


def test_a_server_and_others_write_in_one_directory(tmp_path):
    for name in ('decisions-1.jsonl', 'decisions-2.jsonl.zst', 'outcomes-1.jsonl', '.decisions-3.jsonl', 'x.csv'):
        (tmp_path / name).write_bytes(b'')
    names = lambda name: [path.name for path in log_files.find([tmp_path], name)]  # noqa: E731
    assert names('decisions') == ['decisions-1.jsonl', 'decisions-2.jsonl.zst'] and names('outcomes') == [
        'outcomes-1.jsonl'
    ]
    (tmp_path / 'outcomes-1.jsonl').unlink()
    assert names('outcomes') == ['x.csv'] and len(names('from')) == 3
