"""How long do `tflearn data import` and `join` take beside a peer's own read of the same files, and how much memory?

    python benchmarks/importing.py --rows=1000000 --kinds=csv,parquet,jsonl,join [--peer=polars]

The peer is pyarrow, which reads the files, or polars where it is installed, which scans them and joins those of `join`.
What it has read, it also writes, in another process, to a file of Arrow without compression, since an import ends with
files: that is a second comparison. The share of an import is that of making and writing its records.

`join` is of decisions and outcomes in JSON lines, one of each for a row. The others are of a table of 14 columns:
sessions of five rows, eight numbers, two categories, a probability, a reward. Each side runs in a process of its own,
in turns; a ratio is the median of the ratios of the rounds. The import is timed by its call,
without the second or two in which TensorFlow is loaded; its memory is the greatest of the process, all included.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAP = """
episode = 'session'
time = 'time'
reward = 'reward'
propensity = 'p'
action = {column = 'item', kind = 'category'}
[observation]
x = {columns = ['x0', 'x1', 'x2', 'x3', 'x4', 'x5', 'x6', 'x7']}
country = {kind = 'category'}
"""
TIMED = """
import json, pathlib, re, sys, time
path = pathlib.Path(sys.argv[1])
{before}
begin, begin_cpu = time.perf_counter(), time.process_time()
{call}
secs, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
share = sum(writing) / cpu if 'writing' in globals() else 0.0
# Not getrusage's, which begins with that of the process that started this one.
peak = re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]
print(json.dumps([secs, cpu, int(peak) / 1e6, share]))
"""
_BLOCK_ROWS = 100_000
HEAD = (
    '| | rows | {peer} [s] | import [s] | ratio | ratio of processor time | that to {peer} with a file '
    '| share of writing | memory [GB] |\n|---|---|---|---|---|---|---|---|---|'
)
PEERS = {'pyarrow': 'import pyarrow.csv, pyarrow.feather, pyarrow.json, pyarrow.parquet', 'polars': 'import polars'}
_TABLES = '[{}(path.with_name(name)) for name in ("decisions.jsonl", "outcomes.jsonl")]'
READ = {
    'pyarrow': {
        'csv': 'table = pyarrow.csv.read_csv(path)',
        'parquet': 'table = pyarrow.parquet.read_table(path)',
        'jsonl': 'table = pyarrow.json.read_json(path)',
        'join': f'table = {_TABLES.format("pyarrow.json.read_json")}',
    },
    'polars': {
        'csv': 'table = polars.scan_csv(path).collect()',
        'parquet': 'table = polars.scan_parquet(path).collect()',
        'jsonl': 'table = polars.scan_ndjson(path).collect()',
        'join': f'decisions, outcomes = {_TABLES.format("polars.scan_ndjson")}\n'
        'table = decisions.join(outcomes, left_on="id", right_on="event_id", how="left").collect()',
    },
}
WRITE = {
    'pyarrow': 'for i, each in enumerate(table if isinstance(table, list) else [table]):\n'
    '    pyarrow.feather.write_feather(each, path.with_name(f"written{i}"), "uncompressed")',
    'polars': 'table.write_ipc(path.with_name("written"))',
}
# Processor time of the thread that makes records, and of the one that writes them.
WRITING = """
from tflearn.data import records, writer
writing = []
def measured(function):
    def call(*arguments):
        begin = time.thread_time()
        result = function(*arguments)
        writing.append(time.thread_time() - begin)
        return result
    return call
records.Encoder.encode_together = measured(records.Encoder.encode_together)
writer.EpisodeWriter.write_records = measured(writer.EpisodeWriter.write_records)
"""
IMPORT = f"""{WRITING}
from tflearn.extensions.product import column_map, log_import, log_report
mapped = column_map.read_map(path.with_name('map.toml'))
"""
JOIN = f"""{WRITING}
from tflearn.extensions.product import importing
names = [path.with_name(name) for name in ('decisions.jsonl', 'decisions.toml', 'outcomes.jsonl')]
outcomes = {{'paths': names[2:], 'window_secs': 60.0, 'default_reward': 0.0}}
"""
JOIN_CALL = 'importing.import_logs(names[:1], names[1], pathlib.Path(sys.argv[2]), outcomes=outcomes)'
CALL = 'log_import.run([path], mapped, pathlib.Path(sys.argv[2]), log_report.Report())'


def write_table(folder: pathlib.Path, kind: str, num_rows: int) -> None:
    """Writes the table as `log.<kind>`, and its map."""
    random = np.random.default_rng(0)
    columns = {
        'session': pa.array(np.arange(num_rows) // 5).cast(pa.string()),
        'time': np.arange(num_rows) * 1.0,
        **{f'x{i}': random.normal(size=num_rows).astype(np.float32) for i in range(8)},
        'country': random.choice(['de', 'fr', 'us', 'jp'], num_rows),
        'item': pa.array(random.integers(0, 50, num_rows)).cast(pa.string()),
        'p': random.uniform(0.1, 1, num_rows),
        'reward': random.integers(0, 2, num_rows),
    }
    table, path = pa.table(columns), folder / f'log.{kind}'
    if kind == 'csv':
        pyarrow.csv.write_csv(table, path)
    elif kind == 'parquet':
        pyarrow.parquet.write_table(table, path)
    else:
        with path.open('w') as file:
            for batch in table.to_batches(_BLOCK_ROWS):
                file.writelines(json.dumps(row) + '\n' for row in batch.to_pylist())
    (folder / 'map.toml').write_text(MAP)


def write_decisions(folder: pathlib.Path, num_rows: int) -> None:
    """Writes `decisions.jsonl`, its map, and `outcomes.jsonl` in another order."""
    random = np.random.default_rng(0)
    (folder / 'decisions.toml').write_text(
        "action = {kind = 'integer', high = 2}\n[observation]\nobservation = {length = 4}"
    )
    with (folder / 'decisions.jsonl').open('w') as file:
        for begin in range(0, num_rows, _BLOCK_ROWS):
            observations = random.normal(size=(_BLOCK_ROWS, 4)).round(4).tolist()
            actions = random.integers(0, 3, _BLOCK_ROWS).tolist()
            for i, observed, action in zip(range(begin, num_rows), observations, actions, strict=False):
                line = f'"time": {1e9 + i}, "action": {action}, "probability": 0.3, "observation": {observed}'
                file.write(f'{{"id": "e{i}", {line}}}\n')
    with (folder / 'outcomes.jsonl').open('w') as file:
        for i in random.permutation(num_rows).tolist():
            file.write(f'{{"event_id": "e{i}", "time": {1e9 + i + 5}, "reward": {i % 2}}}\n')


def timed(before: str, call: str, *arguments: object) -> list[float]:
    """Returns wall time, CPU time [s], memory [GB] and the share of writing of a call in a new process."""
    program = [sys.executable, '-c', TIMED.format(before=before, call=call), *map(str, arguments)]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> None:
    """Measures, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', type=int, default=1_000_000)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--kinds', default=','.join(READ['pyarrow']), help='some of them')
    parser.add_argument('--peer', choices=PEERS, default='pyarrow')
    parser.add_argument('--quick', action='store_true', help='20,000 rows, once')
    parser.add_argument('--json', type=pathlib.Path, help='file for the results')
    given = parser.parse_args()
    rows, rounds = (20_000, 1) if given.quick else (given.rows, given.rounds)
    results = {kind: measured(kind, rows, rounds, given.peer) for kind in given.kinds.split(',')}
    print(f'medians of {rounds} rounds\n\n{HEAD.format(peer=given.peer)}')
    for kind, found in results.items():
        print(f'| {kind} | {rows:,} |', *(f'{value:.2f} |' for value in found.values()))
    if given.json:
        given.json.write_text(json.dumps({'rows': rows, 'peer': given.peer, **results}))


def measured(kind: str, rows: int, rounds: int, name_of_peer: str) -> dict[str, float]:
    """Returns the medians of the rounds; the files are deleted."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if kind == 'join':
            write_decisions(folder, rows)
        else:
            write_table(folder, kind, rows)
        path, output = folder / f'log.{kind}', folder / 'imported'  # of 'join' only the folder counts
        for _ in range(rounds):
            read = READ[name_of_peer][kind]
            peer = timed(PEERS[name_of_peer], read, path)
            writing = timed(PEERS[name_of_peer], f'{read}\n{WRITE[name_of_peer]}', path)
            ours = (JOIN, JOIN_CALL) if kind == 'join' else (IMPORT, CALL)
            found.append((peer, writing, timed(*ours, path, output)))
            print(kind, *found[-1], file=sys.stderr, flush=True)
            shutil.rmtree(output)
    return {
        'peer_secs': statistics.median(peer[0] for peer, _, _ in found),
        'import_secs': statistics.median(ours[0] for _, _, ours in found),
        'ratio': statistics.median(ours[0] / peer[0] for peer, _, ours in found),
        'cpu_ratio': statistics.median(ours[1] / peer[1] for peer, _, ours in found),
        'cpu_ratio_with_a_file': statistics.median(ours[1] / writing[1] for _, writing, ours in found),
        'share_of_writing': statistics.median(ours[3] for _, _, ours in found),
        'memory_gb': statistics.median(ours[2] for _, _, ours in found),
    }


if __name__ == '__main__':
    main()
