"""Tables in files, CSV, Parquet or JSON lines -> blocks of columns, in bounded memory. Only here is pyarrow imported.

Every column is read as it stands. `numbers`, `texts`, `lists` and `times` make arrays of it, and mark what they cannot
read, so that one wrong value costs no more than its row.
"""

import contextlib
import dataclasses
import datetime
import io
import json
import pathlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tflearn.core import extras
from tflearn.core.errors import UserOSError, UserValueError

with extras.needed_by('tflearn data import'):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

FORMATS = {'.csv': 'csv', '.parquet': 'parquet', '.jsonl': 'json', '.json': 'json', '.ndjson': 'json'}
_BLOCK_BYTES, _BLOCK_ROWS = 4 << 20, 1 << 15

Array = Any  # a pyarrow.Array


@dataclasses.dataclass
class Block:
    """Some rows of a file.

    Attributes:
      columns: arrays [N] by name.
      rows: the number of each row in the file, int64 [N]. In CSV the first line, of names, is row 1.
      bad: rows of which something is wrong, by index: what was found, and what is needed.
      lost: the same of rows that are no rows of the table, by number.
    """

    columns: dict[str, Array]
    rows: np.ndarray
    bad: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    lost: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)


def read(
    path: pathlib.Path,
    names: Collection[str],
    numeric: Collection[str],
    categories: Collection[str] = (),
    optional: Collection[str] = (),
) -> Iterator[Block]:
    """Yields the rows of a file, block by block.

    Args:
      path: a file, whose name ends with one of `FORMATS`; CSV and JSON may end with .gz besides.
      names: the columns that are read.
      numeric: those of them that hold numbers.
      categories: those of them of which only the different values are needed.
      optional: more columns, which are null where a file does not have them.

    Raises:
      ValueError: if the file is none of these, or lacks a column.
      OSError: if it cannot be read.
    """
    kind = FORMATS.get(path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix)
    if kind is None:
        raise UserValueError(f'got {path}; need a file that ends with one of {", ".join(FORMATS)}, or .csv.gz')
    try:
        if kind == 'json':
            with pa.input_stream(str(path), compression='detect') as stream:
                yield from _json_blocks(path, stream, names, numeric, optional)
        elif kind == 'csv':
            yield from _csv_blocks(path, names, optional)
        else:
            yield from _parquet_blocks(path, names, categories, optional)
    except pa.ArrowInvalid as error:
        raise UserValueError(
            f'got {path}, which is no {kind} file ({_line(error)}); need one; write it again'
        ) from error
    except OSError as error:
        raise UserOSError(f'got {path}, which cannot be read ({_line(error)}); need a readable file') from error


def _check_names(path: pathlib.Path, found: Collection[str], names: Collection[str]) -> None:
    listed = list(found)
    for name in names:
        if listed.count(name) != 1:
            raise UserValueError(
                f'got {path} with {listed.count(name)} columns {name!r}; need one; it has {", ".join(listed):.300}'
            )


def _csv_blocks(path: pathlib.Path, required: Collection[str], optional: Collection[str]) -> Iterator[Block]:
    lost: dict[int, tuple[str, str]] = {}

    def skip(row: Any) -> str:
        lost[row.number] = f'{row.actual_columns} cells', str(row.expected_columns)
        return 'skip'

    # With threads, rows have no numbers.
    options = pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
    parsing = pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
    with pa.csv.open_csv(path, options, parsing) as file:
        _check_names(path, file.schema.names, required)
    lost.clear()
    names = [*required, *optional]
    types = {name: pa.binary() for name in names}
    conversion = pa.csv.ConvertOptions(
        check_utf8=False, column_types=types, include_columns=names, include_missing_columns=True
    )
    number = 2
    with pa.csv.open_csv(path, options, parsing, conversion) as file:
        for batch in file:
            passed = sorted(row for row in lost if row >= number)
            rows = np.arange(number, number + len(batch))
            for row in passed:  # those behind a lost row are one further down
                rows[rows >= row] += 1
            number = int(rows[-1]) + 1 if len(rows) else number
            now = {row: lost[row] for row in passed if row < number}
            block = Block({}, rows, lost=now)
            for name, column in zip(names, batch.columns, strict=True):
                block.columns[name] = _decoded(column, name, block)
            yield block
    rest = {row: reason for row, reason in lost.items() if row >= number}
    if rest:
        yield Block({name: pa.array([], pa.string()) for name in names}, np.arange(0), lost=rest)


def _decoded(column: Array, name: str, block: Block) -> Array:
    """Returns a column of bytes as text; marks what is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = []
        for i, value in enumerate(column.to_pylist()):
            try:
                values.append(value.decode())
            except UnicodeDecodeError:
                values.append(None)
                block.bad.setdefault(i, (f'{name} = {value[:40]!r}', 'text in UTF-8'))
        return pa.array(values, pa.string())


def _parquet_blocks(
    path: pathlib.Path, required: Collection[str], categories: Collection[str], optional: Collection[str]
) -> Iterator[Block]:
    schema = pa.parquet.read_schema(path)
    _check_names(path, schema.names, required)
    names = [*required, *(name for name in optional if name in schema.names)]
    texts = [name for name in categories if pa.types.is_string(schema.field(name).type)]
    with pa.parquet.ParquetFile(path, read_dictionary=texts) as file:
        number = 1
        for batch in file.iter_batches(_BLOCK_ROWS, columns=list(names)):
            columns = {name: batch.column(name) for name in names}
            columns |= {name: pa.nulls(len(batch), pa.string()) for name in optional if name not in columns}
            yield Block(columns, np.arange(number, number + len(batch)))
            number += len(batch)


def _json_blocks(
    path: pathlib.Path, stream: Any, names: Collection[str], numeric: Collection[str], optional: Collection[str]
) -> Iterator[Block]:
    number, rest = 1, b''
    while data := stream.read(_BLOCK_BYTES):
        whole, newline, rest = (rest + data).rpartition(b'\n')
        if newline:
            yield _json_block(path, whole + newline, number, names, numeric, optional)
            number += whole.count(b'\n') + 1
    if rest.strip():
        yield _json_block(path, rest + b'\n', number, names, numeric, optional)


def _json_block(
    path: pathlib.Path,
    data: bytes,
    number: int,
    required: Collection[str],
    numeric: Collection[str],
    optional: Collection[str],
) -> Block:
    """Returns the rows of some lines: all at once, or if they are no table of equal rows, one by one."""
    count, names = data.count(b'\n'), [*required, *optional]
    with contextlib.suppress(pa.ArrowException, ValueError, AttributeError):
        first = json.loads(data.partition(b'\n')[0])
        schema = pa.schema([(name, _json_type(first.get(name), name in numeric)) for name in names])
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior='ignore')
        table = pa.json.read_json(io.BytesIO(data), pa.json.ReadOptions(False, len(data) + 1), options)
        if len(table) == count and set(required) <= first.keys():
            columns = {name: table.column(name).combine_chunks() for name in names}
            return Block(columns, np.arange(number, number + count))
    rows, found = [], []
    lost: dict[int, tuple[str, str]] = {}
    for row, line in enumerate(data.split(b'\n')[:-1], number):
        try:
            value, reason = json.loads(line or b'{}'), 'no object'
        except ValueError as error:
            value, reason = None, str(error)
        if not isinstance(value, dict):
            lost[row] = f'{line[:40]!r} ({reason})', 'a JSON object'
        elif value:
            rows.append(row)
            found.append(value)
    if number == 1 and found:
        _check_names(path, set().union(*found), required)
    columns = {name: _json_array([value.get(name) for value in found]) for name in names}
    return Block(columns, np.array(rows, np.int64), lost=lost)


def _json_type(value: Any, is_numeric: bool) -> Any:
    if isinstance(value, list):
        return pa.list_(_json_type(value[0] if value else None, is_numeric))
    if isinstance(value, bool):
        return pa.bool_()
    if is_numeric and not isinstance(value, str):
        return pa.float64()
    return pa.int64() if isinstance(value, int) else pa.float64() if isinstance(value, float) else pa.string()


def _json_array(values: list[Any]) -> Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError):  # of several types
        return pa.array([each if each is None or isinstance(each, str) else json.dumps(each) for each in values])


def texts(array: Array) -> Array:
    """Returns values as text, null where nothing stands: 3 and 3.0 are '3', as integers beside nulls are floats."""
    if pa.types.is_null(array.type):
        return array.cast(pa.string())
    if pa.types.is_floating(array.type):
        whole = pc.equal(pc.floor(array), array)
        integers = pc.if_else(whole, array, 0.0).cast(pa.int64(), safe=False).cast(pa.string())
        array = pc.if_else(whole, integers, array.cast(pa.string()))
        array = pc.if_else(pc.equal(array, 'nan'), None, array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.cast(pa.string())
    return pc.if_else(pc.equal(array, ''), None, array)


def numbers(array: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns values float64 [N], which of them are missing (also NaN), and which are no finite numbers."""
    return _read(array, lambda given: given.cast(pa.float64()), _number)


def times(array: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns seconds since 1970, float64 [N], of numbers or of times by ISO 8601; then as `numbers`."""
    if pa.types.is_temporal(array.type):
        array = pc.divide(array.cast(pa.timestamp('us', getattr(array.type, 'tz', None))).cast(pa.int64()), 1e6)
    return _read(array, _fast_times, _time)


def _fast_times(array: Array) -> Array:
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:
        text = pc.utf8_rtrim(array.cast(pa.string()), 'Z')
        return pc.divide(text.cast(pa.timestamp('us')).cast(pa.int64()), 1e6)


def _read(
    array: Array, fast: Callable[[Array], Array], slow: Callable[[Any], float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if pa.types.is_string(array.type):
        trimmed = pc.utf8_trim_whitespace(array)
        array = pc.if_else(pc.equal(trimmed, ''), None, trimmed)
    wrong = np.zeros(len(array), bool)
    try:
        values = fast(array).to_numpy(zero_copy_only=False)
        values = np.array(values, np.float64)
    except pa.ArrowException:
        values = np.full(len(array), np.nan)
        for i, value in enumerate(array.to_pylist()):
            try:
                values[i] = np.nan if value is None else slow(value)
            except (TypeError, ValueError, OverflowError):
                wrong[i] = True
    missing = np.isnan(values) & ~wrong
    return values, missing, wrong | np.isinf(values)


def _number(value: Any) -> float:
    if isinstance(value, str) and value.lower() in ('true', 'false'):
        return float(value.lower() == 'true')
    return float(value)


def _time(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        parsed = datetime.datetime.fromisoformat(value)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()


def lists(array: Array) -> tuple[Array, np.ndarray, np.ndarray]:
    """Returns the elements of lists, how many each has, int64 [N], and which lists are missing.

    Text is a JSON array, or elements with spaces between them; such elements have no spaces or commas themselves.
    """
    if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
        plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts(array), r'[\[\]",]', ' '))
        array = pc.utf8_split_whitespace(plain)
        array = pc.if_else(pc.equal(plain, ''), pa.array([[]], array.type)[0], array)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.list_flatten(array), lengths, pc.is_null(array).to_numpy(zero_copy_only=False)


def indices(array: Array, vocabulary: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each value in a vocabulary, int64 [N], -1 for others; and which values are missing."""
    text = texts(array)
    found = pc.fill_null(pc.index_in(text, vocabulary), -1)
    return found.to_numpy(zero_copy_only=False).astype(np.int64), pc.is_null(text).to_numpy(zero_copy_only=False)


def vocabulary(values: Collection[str]) -> Array:
    """Returns the texts as `indices` takes them."""
    return pa.array(list(values), pa.string())


def distinct(array: Array) -> list[str]:
    """Returns the different values, or elements of lists, as text."""
    return texts(pc.unique(array)).drop_null().to_pylist()


def hashes(array: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns a hash of each value as text, uint64 [N], the same in each format; and which values are missing."""
    text = texts(array)
    missing = pc.is_null(text).to_numpy(zero_copy_only=False)
    _, offsets, data = pc.fill_null(text, '').cast(pa.large_string()).buffers()
    ends = np.frombuffer(offsets, np.int64)[: len(text) + 1]
    lengths = np.diff(ends)
    width = (int(lengths.max(initial=0)) + 8) // 8 * 8
    flat = np.zeros((len(lengths), width), np.uint8)
    flat[np.arange(width) < lengths[:, np.newaxis]] = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    mixed = lengths.astype(np.uint64)
    for k, word in enumerate(flat.view('<u8').T):
        after = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)  # the numbers are splitmix64's
        after = (after ^ after >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = np.where(lengths > 8 * k, after ^ after >> np.uint64(32), mixed)
    return mixed, missing


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())[:300]
