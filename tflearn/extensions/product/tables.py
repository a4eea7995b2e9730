"""Tables in files, CSV, Parquet, Arrow or JSON lines -> blocks of columns, in bounded memory. Only here is pyarrow.

Every column is read as it stands. `numbers`, `texts`, `lists` and `times` make arrays of it, and mark what they cannot
read, so that one wrong value costs no more than its row. Each line of a file is a row, a part of one, or a lost one.
"""

import contextlib
import csv
import dataclasses
import datetime
import io
import itertools
import json
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tflearn.core import extras, forms
from tflearn.core.errors import UserOSError, UserValueError
from tflearn.extensions.product import csv_rows
from tflearn.extensions.product.csv_rows import Reason

with extras.needed_by('tflearn data import'):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

FORMATS = {
    '.csv': 'csv', '.parquet': 'parquet', '.arrow': 'arrow', '.feather': 'arrow', '.jsonl': 'json', '.json': 'json',
    '.ndjson': 'json',
}  # fmt: skip
_BLOCK_BYTES, _BLOCK_ROWS = 4 << 20, 1 << 15
_SHOWN = 60  # characters of a value
EXACT = 2.0**53  # integers up to here are exact as floats
# The spellings of floats and booleans by programs: no leading zeros, no zeros at the end but '.0', an exponent behind
# one digit. Names such as 007, 2.10 and 5e3 are none.
_DIGITS = r'\.([0-9]*[1-9]|0)'
_SPELLED = (
    rf'^-?(0|[1-9][0-9]*){_DIGITS}$|^-?[1-9]{_DIGITS}[eE][+-]?[0-9]+$|^-?[1-9][eE][+-][0-9]+$|'
    '^(-0|True|False|TRUE|FALSE)$'
)

Array = Any  # a pyarrow.Array


@dataclasses.dataclass
class Block:
    """Some rows of a file.

    Attributes:
      columns: arrays [N] by name.
      rows: the number of each row in the file, int64 [N]. In CSV it is that of its first line; names are in line 1.
      bad: rows of which something is wrong, by index: what was found, and what is needed.
      lost: the same of rows that are no rows of the table, by number.
    """

    columns: dict[str, Array]
    rows: np.ndarray
    bad: dict[int, Reason] = dataclasses.field(default_factory=dict)
    lost: dict[int, Reason] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns that are read.

    Attributes:
      names: those that a file must have.
      numeric: those of them that hold numbers.
      lists: those of them that hold lists.
      categories: those of them of which only the different values are needed.
      optional: more columns, which are null where a file does not have them.
    """

    names: Sequence[str]
    numeric: Collection[str] = ()
    lists: Collection[str] = ()
    categories: Collection[str] = ()
    optional: Sequence[str] = ()

    def check(self, path: pathlib.Path, found: Collection[str]) -> None:
        """Raises ValueError if a file with these columns lacks one, or has one twice."""
        listed = list(found)
        for name in self.names:
            if listed.count(name) != 1:
                raise UserValueError(
                    f'got {path} with {listed.count(name)} columns {name!r}; need one; it has {", ".join(listed):.300}'
                )


def read(path: pathlib.Path, columns: Columns) -> Iterator[Block]:
    """Yields the rows of a file, block by block.

    Args:
      path: a file, whose name ends with one of `FORMATS`; CSV and JSON may end with .gz besides.
      columns: what is read of it.

    Raises:
      ValueError: if the file is none of these, or lacks a column.
      OSError: if it cannot be read.
    """
    kind = FORMATS.get(path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix)
    if kind is None:
        raise UserValueError(f'got {path}; need a file that ends with one of {", ".join(FORMATS)}, or .csv.gz')
    blocks = {'csv': _csv_blocks, 'json': _json_blocks, 'parquet': _parquet_blocks, 'arrow': _arrow_blocks}[kind]
    try:
        for block in blocks(path, columns):
            for name in (*columns.names, *columns.optional):
                array = block.columns.get(name, pa.nulls(len(block.rows)))
                block.columns[name] = _plain(array, name, name in columns.lists, block)
            yield block
    except pa.ArrowException as error:
        raise UserValueError(
            f'got {path}, which is no {kind} file ({_line(error)}); need one; write it again'
        ) from error
    except OSError as error:
        raise UserOSError(f'got {path}, which cannot be read ({_line(error)}); need a readable file') from error


def _pieces(path: pathlib.Path) -> Iterator[bytes]:
    """Yields the bytes of a file of text, unpacked, up to the end of a line; of the last line, if it has none, too."""
    with pa.input_stream(str(path), compression='detect') as stream:
        rest = b''
        while data := stream.read(_BLOCK_BYTES):
            if not rest and data[:2] in (b'\xff\xfe', b'\xfe\xff'):
                raise UserValueError(f'got {path} in UTF-16; need UTF-8')
            whole, newline, rest = (rest + data).rpartition(b'\n')
            if newline:
                yield whole + newline
        if rest.strip():
            yield rest + b'\n'


def _csv_blocks(path: pathlib.Path, columns: Columns) -> Iterator[Block]:
    pieces = _pieces(path)
    head, _, rest = next(pieces, b'').removeprefix(b'\xef\xbb\xbf').partition(b'\n')
    head = head.removesuffix(b'\r')
    if not head or not csv_rows.is_row(head):
        raise UserValueError(f'got {path}, which is no csv file ({head[:40]!r}); need names in its first line')
    names = next(csv.reader([head.decode(errors='replace')]))
    columns.check(path, names)
    index = {name: names.index(name) for name in (*columns.names, *columns.optional) if name in names}
    number, held = 2, b''
    for piece in itertools.chain([rest], pieces, [None]):
        data = held + (piece or b'')
        found, rows, lost, held = csv_rows.divide(data, number, len(names), is_last=piece is None)
        number += data.count(b'\n') - held.count(b'\n')
        yield _csv_block(found, rows, lost, index, len(names))


def _csv_block(data: bytes, rows: np.ndarray, lost: dict[int, Reason], index: dict[str, int], width: int) -> Block:
    wrong: list[int] = []

    def skip(row: Any) -> str:
        wrong.append(row.number - 1)
        lost[int(rows[row.number - 1])] = f'{row.actual_columns} cells', str(row.expected_columns)
        return 'skip'

    if not len(rows):
        return Block({name: pa.array([], pa.string()) for name in index}, rows, lost=lost)
    # With threads, rows have no numbers.
    reading = pa.csv.ReadOptions(
        use_threads=False, block_size=len(data) + 1, column_names=[str(i) for i in range(width)]
    )
    parsing = pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
    wanted = [str(i) for i in index.values()]
    types = dict.fromkeys(wanted, pa.binary())
    conversion = pa.csv.ConvertOptions(check_utf8=False, column_types=types, include_columns=wanted)
    table = pa.csv.read_csv(io.BytesIO(data), reading, parsing, conversion)
    if len(table) + len(wrong) != len(rows):
        raise UserValueError(f'got {len(table)} rows of {len(rows)} from line {rows[0]} on; need all; quote its cells')
    return Block({name: table.column(str(i)) for name, i in index.items()}, np.delete(rows, wrong), lost=lost)


def _parquet_blocks(path: pathlib.Path, columns: Columns) -> Iterator[Block]:
    schema = pa.parquet.read_schema(path)
    columns.check(path, schema.names)
    texts = [name for name in columns.categories if pa.types.is_string(schema.field(name).type)]
    names = [*columns.names, *(name for name in columns.optional if name in schema.names)]
    with pa.parquet.ParquetFile(path, read_dictionary=texts) as file:
        yield from _batches(file.iter_batches(_BLOCK_ROWS, columns=names), names)


def _arrow_blocks(path: pathlib.Path, columns: Columns) -> Iterator[Block]:
    with pa.memory_map(str(path)) as source:
        is_file = source.read(6) == b'ARROW1'
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        columns.check(path, reader.schema.names)
        names = [*columns.names, *(name for name in columns.optional if name in reader.schema.names)]
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
        yield from _batches(batches, names)


def _batches(batches: Iterator[Any], names: Sequence[str]) -> Iterator[Block]:
    number = 1
    for batch in batches:
        for begin in range(0, len(batch), _BLOCK_ROWS):
            part = batch.slice(begin, _BLOCK_ROWS)
            yield Block({name: part.column(name) for name in names}, np.arange(number, number + len(part)))
            number += len(part)


def _json_blocks(path: pathlib.Path, columns: Columns) -> Iterator[Block]:
    number = 1
    for data in _pieces(path):
        yield _json_block(path, data, number, columns)
        number += data.count(b'\n')


def _json_block(path: pathlib.Path, data: bytes, number: int, columns: Columns) -> Block:
    """Returns the rows of some lines: all at once, or if they are no table of equal rows, one by one."""
    count, names = data.count(b'\n'), [*columns.names, *columns.optional]
    with contextlib.suppress(pa.ArrowException, ValueError, AttributeError, RecursionError):
        first = json.loads(data.partition(b'\n')[0])
        schema = pa.schema([(name, _json_type(first.get(name), name in columns.numeric)) for name in names])
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior='ignore')
        table = pa.json.read_json(io.BytesIO(data), pa.json.ReadOptions(False, len(data) + 1), options)
        if len(table) == count and set(columns.names) <= first.keys():
            return Block({name: table.column(name) for name in names}, np.arange(number, number + count))
    rows, found = [], []
    lost: dict[int, Reason] = {}
    for row, line in enumerate(data.split(b'\n')[:-1], number):
        try:
            value, reason = json.loads(line.strip() or b'{}'), 'no object'
        except (ValueError, RecursionError) as error:
            value, reason = None, str(error)
        if not isinstance(value, dict):
            lost[row] = f'{line[:40]!r} ({reason})', 'a JSON object'
        # Half a character, perhaps, which no program can write.
        elif b'\\ud' in line.lower() and (fault := forms.fault(value, Any)):
            got, _, need = fault.removeprefix('got ').partition('; need ')
            lost[row] = got, need
        elif value:
            rows.append(row)
            found.append(value)
    if number == 1 and found:
        columns.check(path, set().union(*found))
    return Block(
        {name: _json_array([value.get(name) for value in found]) for name in names}, np.array(rows, np.int64), lost=lost
    )


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
    except (pa.ArrowException, TypeError, OverflowError):  # of several types, or large
        return pa.array([each if each is None or isinstance(each, str) else json.dumps(each) for each in values])


def _plain(array: Array, name: str, is_list: bool, block: Block) -> Array:
    """Returns a column as text, numbers, times, or lists of these; marks the rows of anything else."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array if pa.types.is_string(kind.value_type) else _plain(array.dictionary_decode(), name, is_list, block)
    if _is_binary(kind):
        return _decoded(array, name, block)
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    with contextlib.suppress(pa.ArrowException):
        if is_list and hasattr(kind, 'value_type'):
            value = pa.string() if _is_binary(kind.value_type) else kind.value_type
            if not pa.types.is_nested(value):
                return array.cast(pa.list_(value))
        elif not pa.types.is_nested(kind):
            array[:0].cast(pa.string())
            return array
    need = 'a list of numbers or texts' if is_list else 'a number or text'
    for i in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        block.bad.setdefault(i, (f'{name} = {shown(array, i)}', need))
    return pa.nulls(len(array), pa.string())


def _is_binary(kind: Any) -> bool:
    return not pa.types.is_string(kind) and any(
        getattr(pa.types, f'is_{name}', lambda kind: False)(kind)
        for name in ('binary', 'large_binary', 'fixed_size_binary', 'binary_view', 'large_string', 'string_view')
    )


def _decoded(column: Array, name: str, block: Block) -> Array:
    """Returns a column of bytes as text; marks what is not UTF-8."""
    with contextlib.suppress(pa.ArrowException):
        return column.cast(pa.string())
    values = []
    for i, value in enumerate(column.cast(pa.binary()).to_pylist()):
        try:
            values.append(value and value.decode())
        except UnicodeDecodeError:
            values.append(None)
            block.bad.setdefault(i, (f'{name} = {value[:40]!r}', 'text in UTF-8'))
    return pa.array([each or None for each in values], pa.string())


def shown(array: Array, i: int) -> str:
    """Returns a value for a message."""
    try:
        value = _beginning(array[i])
    except (ValueError, pa.ArrowException):  # of nanoseconds
        value = array[i : i + 1].cast(pa.string())[0].as_py()
    return f'{None if value == "" else value!r:.{_SHOWN}}'


def _beginning(scalar: Any, most: int = _SHOWN) -> Any:
    """Returns a value with at most so many levels and parts: pyarrow takes seconds for an object of 20,000 fields."""
    is_nested = pa.types.is_nested(scalar.type) and scalar.is_valid and most > 0
    if is_nested and pa.types.is_struct(scalar.type):
        names = enumerate(itertools.islice(scalar, most))
        return {name: _beginning(scalar[k], most - 1) for k, name in names}
    if is_nested and isinstance(scalar, pa.ListScalar):
        return [_beginning(each, most - 1) for each in scalar.values[:most]]
    return scalar.as_py() if most else ...


def texts(array: Array) -> Array:
    """Returns values as text, null where nothing stands; the same text for a value in each format.

    3 and 3.0 are '3', since integers beside nulls are floats; True is 'true', and 1e-7 is '1e-07'. Of a float beyond
    2^53 nobody knows which integer it was: it is null.
    """
    if pa.types.is_dictionary(array.type):
        return texts(array.dictionary).take(array.indices)
    if pa.types.is_null(array.type):
        return array.cast(pa.string())
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.less_equal(pc.abs(array), EXACT), array, None)  # NaN neither
        whole = pc.equal(pc.floor(array), array)
        integers = pc.if_else(whole, array, 0.0).cast(pa.int64(), safe=False).cast(pa.string())
        array = pc.if_else(whole, integers, array.cast(pa.string()))
    array = array.cast(pa.string())
    array = pc.if_else(pc.equal(array, ''), None, array)
    spelled = pc.fill_null(pc.match_substring_regex(array, _SPELLED), False)
    if not pc.any(spelled).as_py():
        return array
    some = pc.filter(array, spelled).dictionary_encode()
    same = pa.array([_canonical(each) for each in some.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(array, spelled, same.take(some.indices))


def _canonical(text: str) -> str | None:
    """Returns the one spelling of a float or a boolean."""
    if text.lower() in ('true', 'false'):
        return text.lower()
    value = float(text)
    if abs(value) > EXACT:
        return None
    return str(int(value)) if value == int(value) else repr(value)


def numbers(array: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns values float64 [N], which of them are missing (also NaN), and which are no finite numbers."""
    return _read(array, lambda given: given.cast(pa.float64(), safe=False), _number)


def times(array: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns seconds since 1970, float64 [N], of numbers or of times by ISO 8601; then as `numbers`."""
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        array = array.cast(pa.timestamp('us', getattr(array.type, 'tz', None)), safe=False)
        array = pc.divide(array.cast(pa.int64()), 1e6)
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
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string(array.type):
        trimmed = pc.utf8_trim_whitespace(array)
        array = pc.if_else(pc.equal(trimmed, ''), None, trimmed)
    wrong = np.zeros(len(array), bool)
    try:
        values = np.array(fast(array).to_numpy(zero_copy_only=False), np.float64)
    except pa.ArrowException:
        values = np.full(len(array), np.nan)
        for i in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
            try:
                values[i] = slow(array[i].as_py())
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


def lists(array: Array) -> tuple[Array, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the elements of lists, how many each has, int64 [N], and which lists are missing, and which are wrong.

    Text is a JSON array, or elements with spaces between them.
    """
    wrong = np.zeros(len(array), bool)
    if not pa.types.is_list(array.type):
        text = pc.utf8_trim_whitespace(texts(array))
        is_json = pc.fill_null(pc.starts_with(text, '['), False)
        split = pc.utf8_split_whitespace(pc.if_else(is_json, pa.scalar(None, pa.string()), text))
        array = pc.if_else(pc.equal(text, ''), pa.array([[]], split.type)[0], split)
        if pc.any(is_json).as_py():
            some = pc.filter(text, is_json).dictionary_encode()
            parsed = pa.array([_elements(each) for each in some.dictionary.to_pylist()], pa.list_(pa.string()))
            places = pc.cumulative_sum(is_json.cast(pa.int32()))
            found = parsed.take(some.indices).take(pc.max_element_wise(pc.subtract(places, 1), 0))
            wrong = pc.and_(is_json, pc.is_null(found)).to_numpy(zero_copy_only=False)
            array = pc.if_else(is_json, found, array)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.list_flatten(array), lengths, pc.is_null(array).to_numpy(zero_copy_only=False), wrong


def _elements(text: str) -> list[str | None] | None:
    """Returns the elements of a JSON array as text; None for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text, parse_int=str, parse_float=str)
        if not any(isinstance(each, list | dict) for each in found):
            return [None if each is None else each if isinstance(each, str) else str(each) for each in found]
    return None


def indices(array: Array, vocabulary: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each value in a vocabulary, int64 [N], -1 for others; and which values are missing."""
    text = texts(array)
    found = pc.fill_null(pc.index_in(text, vocabulary), -1)
    return found.to_numpy(zero_copy_only=False).astype(np.int64), pc.is_null(text).to_numpy(zero_copy_only=False)


def vocabulary(values: Collection[str]) -> Array:
    """Returns the texts as `indices` takes them."""
    return texts(pa.array(list(values), pa.string()))


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
