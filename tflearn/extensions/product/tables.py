"""Tables in files, CSV, Parquet, Arrow, JSON lines or Vowpal Wabbit's -> blocks of columns, in bounded memory.

Every column is read as it stands; `table_values` makes arrays of it, and marks what it cannot read, so that one wrong
value costs no more than its row. Each line of a file is a row, a part of one, or a lost one.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import json
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tflearn.core import extras, forms
from tflearn.core.errors import UserOSError, UserValueError
from tflearn.extensions.product import csv_rows, log_files, vw_rows
from tflearn.extensions.product.csv_rows import Reason

with extras.needed_by('tflearn data import'):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

_BLOCK_BYTES, _BLOCK_ROWS = 4 << 20, 1 << 15
_SHOWN = 60  # characters of a value
_NEED_TEXTS = (
    'the text that servers log for a policy with a vocabulary (older ones logged the number of its place, and what has '
    "no vocabulary is a number: kind = 'integer' takes these)"
)
_NEED_NUMBERS = "a number; what the policy knows by texts is kind = 'category'"
NOT_ACTIVATED = 'decisions that were never activated'  # what was not shown is no evidence

Array = Any  # a pyarrow.Array


@dataclasses.dataclass
class Block:
    """Some rows of a file.

    Attributes:
      columns: arrays [N] by name.
      rows: the number of each row in the file, int64 [N]. In CSV it is that of its first line; names are in line 1.
      bad: rows of which something is wrong, by index: what was found, and what is needed.
      lost: the same of rows that are no rows of the table, by number.
      no_rows: how many decisions are no rows, by the reason.
      absent: columns that the file does not have: they are null.
    """

    columns: dict[str, Array]
    rows: np.ndarray
    bad: dict[int, Reason] = dataclasses.field(default_factory=dict)
    lost: dict[int, Reason] = dataclasses.field(default_factory=dict)
    no_rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    absent: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns that are read.

    Attributes:
      names: those that at least one file must have: where others do not, as older ones may, they are null.
      numeric: those of them that hold numbers.
      lists: those of them that hold lists: 1, or 2 for lists of lists.
      categories: those of them whose values repeat: of Parquet each different one is read once.
      optional: more columns, which no file must have.
      separator: what stands between the cells of CSV; None takes the one of the first line.
      are_texts: of columns where a text means another thing than a number which one it has to be.
    """

    names: Sequence[str]
    numeric: Collection[str] = ()
    lists: Mapping[str, int] = dataclasses.field(default_factory=dict)
    categories: Collection[str] = ()
    optional: Sequence[str] = ()
    separator: str | None = None
    are_texts: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.names, self.optional)


@dataclasses.dataclass
class _File:
    """A file that is open.

    Attributes:
      names: its columns in their order; none if it has no row that names some.
      blocks: its rows.
    """

    names: Sequence[str]
    blocks: Iterator[Block]


def read(paths: Sequence[pathlib.Path], columns: Columns) -> Iterator[tuple[int, Block]]:
    """Yields the rows of files, block by block, each with the index of its file.

    Args:
      paths: files, whose names end with one of `log_files.FORMATS`; those of text may end with .gz or .zst besides.
      columns: what is read of them. A file may have a column in the name of a directory, such as date=2026-11-01.

    Raises:
      ValueError: if a file is none of these, or has a column twice, or if no file has a column.
      OSError: if one cannot be read.
    """
    names = names_of(paths, columns)
    for i, path in enumerate(paths):
        with _errors_of(path):
            for block in _open(path, columns).blocks:
                _complete(block, columns, names[i], log_files.partitions(path))
                yield i, block


def names_of(paths: Sequence[pathlib.Path], columns: Columns) -> list[Sequence[str]]:
    """Returns the columns that each of the files has; raises as `read`."""
    names = [_names(path, columns) for path in paths]
    known = set().union(*names, *map(log_files.partitions, paths))
    for name in columns.names if any(names) else ():
        if name not in known:
            it_has = f'{", ".join(names[0]):.300}'
            raise UserValueError(f'got {paths[0]} with 0 columns {name!r}; need one; it has {it_has}')
    return names


def _names(path: pathlib.Path, columns: Columns) -> Sequence[str]:
    with _errors_of(path):
        names = _open(path, columns).names
    for name in columns:
        if (count := list(names).count(name)) > 1:
            raise UserValueError(f'got {path} with {count} columns {name!r}; need one; it has {", ".join(names):.300}')
    return names


def _complete(block: Block, columns: Columns, names: Collection[str], of_directory: Mapping[str, str | None]) -> None:
    """Makes all columns plain, and adds those that the file does not have."""
    num_rows = len(block.rows)
    for name in columns:
        if name in block.columns and (name in names or name not in of_directory):
            array = _plain(block.columns[name], name, columns.lists.get(name, 0), block)
            _check_kind(array, name, columns.are_texts.get(name), block)
        else:
            array = pa.repeat(pa.scalar(of_directory.get(name), pa.string()), num_rows)
        block.columns[name] = array
        # A later row of JSON may have a column that those before do not have.
        if name in columns.names and {name}.isdisjoint([*names, *of_directory]) and array.null_count == num_rows:
            block.absent.append(name)


def num_rows(path: pathlib.Path) -> int:
    """Returns how many rows a file has, or at least lines."""
    with _errors_of(path):
        if log_files.format_of(path) == 'parquet':
            return pa.parquet.read_metadata(path).num_rows
        if log_files.format_of(path) == 'arrow':
            return sum(len(block.rows) for block in _open(path, Columns(())).blocks)
        return sum(piece.count(b'\n') for piece in _pieces(path))


def _open(path: pathlib.Path, columns: Columns) -> _File:
    kind = log_files.format_of(path)
    if kind is None:
        raise UserValueError(
            f'got {path}; need a file that ends with one of {", ".join(log_files.FORMATS)}, if it is text also with '
            '.gz or .zst behind that'
        )
    if kind == 'json' and vw_rows.is_dsjson(next(_pieces(path), b'')):
        kind = 'dsjson'
    return _OPEN[kind](path, columns)


@contextlib.contextmanager
def _errors_of(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        kind = log_files.format_of(path)
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
            if end := data.rfind(b'\n') + 1:
                yield b''.join([rest, memoryview(data)[:end]])
                rest = b''
            rest += data[end:]
        if rest.strip():
            yield rest + b'\n'


def _open_csv(path: pathlib.Path, columns: Columns) -> _File:
    pieces = _pieces(path)
    head, _, rest = next(pieces, b'').removeprefix(b'\xef\xbb\xbf').partition(b'\n')
    head = head.removesuffix(b'\r')
    stated = columns.separator or ('\t' if '.tsv' in path.suffixes else None)
    separators = [stated] if stated else csv_rows.separators(head) or [',']
    if len(separators) > 1:
        raise UserValueError(
            f'got {path} with {" and ".join(map(repr, separators))} in its first line; need one separator; state it '
            f'in the column map, such as separator = {separators[-1]!r}'
        )
    dialect = csv_rows.dialect(separators[0])
    if not head or b'\r' in head or not dialect.row.fullmatch(head):
        raise UserValueError(f'got {path}, which is no csv file ({head[:40]!r}); need names in its first line')
    names = next(csv.reader([head.decode(errors='replace')], delimiter=dialect.separator))
    index = {name: names.index(name) for name in columns if name in names}
    return _File(names, _csv_blocks(itertools.chain([rest], pieces, [None]), index, len(names), dialect))


def _csv_blocks(
    pieces: Iterator[bytes | None], index: dict[str, int], width: int, dialect: csv_rows.Dialect
) -> Iterator[Block]:
    number, held = 2, b''
    for piece in pieces:
        data = held + (piece or b'')
        count, block = data.count(b'\n'), None
        if csv_rows.are_plain(data, dialect):
            block = _csv_block(data, np.arange(number, number + count), {}, index, width, dialect.separator)
        if block:
            held = b''
        else:
            found, rows, lost, held = csv_rows.divide(data, number, width, piece is None, dialect)
            block = _csv_block(found, rows, lost, index, width, dialect.separator)
            if block is None:
                raise UserValueError(
                    f'got more or fewer rows than {len(rows)} from line {number} on; need as many; quote its cells'
                )
        number += count - held.count(b'\n')
        yield block


def _csv_block(
    data: bytes, rows: np.ndarray, lost: dict[int, Reason], index: dict[str, int], width: int, separator: str
) -> Block | None:
    """Returns the rows, which have these numbers; None if there are not as many."""
    wrong: list[int] = []

    def skip(row: Any) -> str:
        wrong.append(row.number - 1)
        lost[int(rows[row.number - 1])] = f'{row.actual_columns} cells', f'{row.expected_columns} cells'
        return 'skip'

    if not len(rows):
        return Block({name: pa.array([], pa.string()) for name in index}, rows, lost=lost)
    # With threads, rows have no numbers.
    reading = pa.csv.ReadOptions(
        use_threads=False, block_size=len(data) + 1, column_names=[str(i) for i in range(width)]
    )
    parsing = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip)
    wanted = [str(i) for i in index.values()]
    types = dict.fromkeys(wanted, pa.string() if data.isascii() else pa.binary())  # which has to be checked
    conversion = pa.csv.ConvertOptions(check_utf8=False, column_types=types, include_columns=wanted)
    table = pa.csv.read_csv(io.BytesIO(data), reading, parsing, conversion)
    if len(table) + len(wrong) != len(rows):
        return None
    return Block({name: table.column(str(i)) for name, i in index.items()}, np.delete(rows, wrong), lost=lost)


def _open_parquet(path: pathlib.Path, columns: Columns) -> _File:
    schema = pa.parquet.read_schema(path)
    names = [name for name in columns if name in schema.names]
    categories = {name for name in columns.categories if name in names}
    texts = [name for name in categories if pa.types.is_string(schema.field(name).type)]
    return _File(schema.names, _parquet_blocks(path, names, texts))


def _parquet_blocks(path: pathlib.Path, names: Sequence[str], texts: Sequence[str]) -> Iterator[Block]:
    with pa.parquet.ParquetFile(path, read_dictionary=texts) as file:
        yield from _batches(file.iter_batches(_BLOCK_ROWS, columns=names), names)


def _open_arrow(path: pathlib.Path, columns: Columns) -> _File:
    source = pa.memory_map(str(path))
    is_file = source.read(6) == b'ARROW1'
    source.seek(0)
    reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
    names = [name for name in columns if name in reader.schema.names]
    return _File(reader.schema.names, _batches(batches, names))


def _batches(batches: Iterator[Any], names: Sequence[str]) -> Iterator[Block]:
    number = 1
    for batch in batches:
        for begin in range(0, len(batch), _BLOCK_ROWS):
            part = batch.slice(begin, _BLOCK_ROWS)
            yield Block({name: part.column(name) for name in names}, np.arange(number, number + len(part)))
            number += len(part)


def _open_json(path: pathlib.Path, columns: Columns) -> _File:
    names: dict[str, None] = {}
    for line in io.BytesIO(next(_pieces(path), b'')):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            names |= dict.fromkeys(row) if isinstance(row, dict) else {}
        if names and names.keys() >= set(columns.names):
            break
    return _File([*names], _json_blocks(path, columns))


def _json_blocks(path: pathlib.Path, columns: Columns) -> Iterator[Block]:
    number = 1
    for data in _pieces(path):
        count = data.count(b'\n')
        yield _json_block(data, number, count, columns)
        number += count


def _json_block(data: bytes, number: int, count: int, columns: Columns) -> Block:
    """Returns the rows of so many lines: all at once, or if they are no table of equal rows, one by one."""
    names = list(columns)
    with contextlib.suppress(pa.ArrowException, ValueError, AttributeError, RecursionError):
        first = json.loads(data[: data.index(b'\n')])
        schema = pa.schema([(name, _json_type(first.get(name), name in columns.numeric)) for name in names])
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior='ignore')
        table = pa.json.read_json(io.BytesIO(data), pa.json.ReadOptions(False, len(data) + 1), options)
        if len(table) == count:
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
    block = Block({}, np.array(rows, np.int64), lost=lost)
    for name in names:
        values = [value.get(name) for value in found]
        if columns.are_texts.get(name):  # before numbers among texts are texts too
            for i, value in enumerate(values):
                flat = value if isinstance(value, list) else [value]
                if not all(each is None or isinstance(each, str) for each in flat):
                    block.bad[i], values[i] = (f'{name} = {value!r:.{_SHOWN}}', _NEED_TEXTS), None
        block.columns[name] = _json_array(values)
    return block


def _open_vw(
    path: pathlib.Path, columns: Columns, rows_of: Callable[..., Iterator[tuple[int, Any]]] = vw_rows.of_text
) -> _File:
    lines = itertools.chain.from_iterable(piece.split(b'\n')[:-1] for piece in _pieces(path))
    names = [name for name in columns if name in vw_rows.COLUMNS]
    # Where nothing but vocabularies is read, no decision is judged, so its weight is not needed.
    is_unweighted = vw_rows.DROP_PROBABILITY not in names and {*columns.names} != {*columns.categories}
    return _File(vw_rows.COLUMNS, _vw_blocks(rows_of(lines), names, is_unweighted))


def _vw_blocks(found: Iterator[tuple[int, Any]], names: Sequence[str], is_unweighted: bool) -> Iterator[Block]:
    while some := list(itertools.islice(found, _BLOCK_ROWS)):
        lost = {number: each for number, each in some if isinstance(each, tuple)}
        if is_unweighted:
            lost |= {number: reason for number, each in some if (reason := vw_rows.unweighted(each))}
        # A decision for several slots has as many rows, all with its number.
        rows = [(number, row) for number, each in some if number not in lost and each is not None for row in each]
        no_rows = {NOT_ACTIVATED: sum(each is None for _, each in some)}
        no_rows[vw_rows.UNLABELLED] = sum(each == [] for _, each in some)
        arrays = {name: _json_array([row.get(name) for _, row in rows]) for name in names}
        numbers = np.array([number for number, _ in rows], np.int64)
        yield Block(arrays, numbers, {}, lost, {reason: count for reason, count in no_rows.items() if count})


_OPEN: Mapping[str, Callable[[pathlib.Path, Columns], _File]] = {
    'csv': _open_csv,
    'json': _open_json,
    'parquet': _open_parquet,
    'arrow': _open_arrow,
    'vw': _open_vw,
    'dsjson': functools.partial(_open_vw, rows_of=vw_rows.of_dsjson),
}


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


def _plain(array: Array, name: str, levels: int, block: Block) -> Array:
    """Returns a column as text, numbers, times, or lists (of lists) of these; marks the rows of anything else."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array if pa.types.is_string(kind.value_type) else _plain(array.dictionary_decode(), name, levels, block)
    if _is_binary(kind):
        return _decoded(array, name, block)
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    with contextlib.suppress(pa.ArrowException):
        if levels and hasattr(kind, 'value_type'):
            value, depth = kind.value_type, 1
            while depth < levels and hasattr(value, 'value_type'):
                value, depth = value.value_type, depth + 1
            value = pa.string() if _is_binary(value) else value
            if not pa.types.is_nested(value):
                return array.cast(functools.reduce(lambda of, _: pa.list_(of), range(depth), value))
        elif not pa.types.is_nested(kind):
            array[:0].cast(pa.string())
            return array
    need = 'a list of numbers or texts' if levels else 'a number or text'
    for i in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        block.bad.setdefault(i, (f'{name} = {shown(array, i)}', need))
    return pa.nulls(len(array), pa.string())


def _check_kind(array: Array, name: str, is_text: bool | None, block: Block) -> None:
    """Marks all rows of a column that has texts where numbers are needed, or the other way round."""
    kind = array.type
    while hasattr(kind, 'value_type'):
        kind = kind.value_type
    if is_text is None or pa.types.is_null(kind) or pa.types.is_string(kind) == is_text:
        return
    for i in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        block.bad.setdefault(i, (f'{name} = {shown(array, i)}', _NEED_TEXTS if is_text else _NEED_NUMBERS))


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


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())[:300]
