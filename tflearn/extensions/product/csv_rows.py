"""The lines of CSV -> rows, whose cells in quotes may have several lines. An open quote costs its own line.

A parser would take all that follows such a quote for one cell.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tflearn.core.errors import UserValueError

_MAX_LINES = 1_000  # of a cell in quotes
_SEPARATORS = (',', '\t', ';')
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_QUOTED = rb'"[^"]*+(?:""[^"]*+)*+'

Reason = tuple[str, str]  # what was found, and what is needed


class Dialect(NamedTuple):
    """What stands between cells, and the patterns that follow from it.

    Attributes:
      separator: one character.
      row: a row whose quotes are closed.
      open_row: the begin of one whose last cell is not closed in this line.
      cells: each cell of a row.
    """

    separator: str
    row: re.Pattern[bytes]
    open_row: re.Pattern[bytes]
    cells: re.Pattern[bytes]


@functools.cache
def dialect(separator: str) -> Dialect:
    """Returns that of a separator."""
    of = re.escape(separator.encode())
    cell = rb'(?:[^"%b\n][^%b\n]*+|%b"|)' % (of, of, _QUOTED)
    row, open_row = rb'%b(?:%b%b)*+' % (cell, of, cell), rb'(?:%b%b)*+%b' % (cell, of, _QUOTED)
    return Dialect(separator, re.compile(row), re.compile(open_row), re.compile(rb'(?:^|%b)%b' % (of, cell)))


def separators(head: bytes) -> list[str]:
    """Returns those of the first line, outside of quotes."""
    text = re.sub(_QUOTED + b'"', b'', head)
    return [each for each in _SEPARATORS if each.encode() in text]


def checked_separator(given: Any) -> str | None:
    """Returns what a user states; raises ValueError for what cannot stand between cells."""
    if given is None or (isinstance(given, str) and len(given) == 1 and given.isascii() and given not in '"\r\n'):
        return given
    raise UserValueError(f"got separator = {given!r:.100}; need one character of ASCII, such as ';' or '\\t'")


def are_plain(data: bytes, dialect: Dialect) -> bool:
    """Returns whether all quotes of whole lines stand around cells: each line is a row, unless a cell has several."""
    # One alone ends a row for the parser.
    if (returns := data.count(b'\r')) and returns != data.count(b'\r\n'):
        return False
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) % 2:
        return False
    beside = np.zeros(256, bool)
    beside[[ord(dialect.separator), _NEWLINE, _RETURN, _QUOTE]] = True  # two quotes stand for one
    # Before the first byte is the last one, a newline.
    return bool(beside[text[quotes[::2] - 1]].all() and beside[text[quotes[1::2] + 1]].all())


def divide(
    data: bytes, number: int, width: int, is_last: bool, dialect: Dialect
) -> tuple[bytes, np.ndarray, dict[int, Reason], bytes]:
    """Finds the rows in some lines.

    Args:
      data: whole lines.
      number: the number of the first one.
      width: the cells of a row.
      is_last: whether no more lines come.
      dialect: what stands between cells.

    Returns:
      (rows, numbers, lost, rest): the rows, whose quotes are closed, and the numbers of their first lines; lines whose
      quotes are not; and lines that belong to a row which later lines may close.
    """
    lost: dict[int, Reason] = {}
    text = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero((text == _NEWLINE) | (text == _QUOTE))
    ends = marks[text[marks] == _NEWLINE] + 1
    kept, rows, at, rest = [], [], 0, b''
    begin_of = lambda line: 0 if line == 0 else int(ends[line - 1])  # noqa: E731
    for line in [*_special_lines(text, marks, dialect).tolist(), len(ends)]:
        if line < at:  # of a row of several lines
            continue
        kept.append(data[begin_of(at) : begin_of(line)])
        rows.append(np.arange(at, line))
        if line == len(ends):
            break
        some = data[begin_of(line) : int(ends[min(line + _MAX_LINES, len(ends)) - 1])].split(b'\n')[:-1]
        count = _num_lines(some, width, dialect)
        if count is None and not is_last and len(some) < _MAX_LINES:
            rest = data[begin_of(line) :]
            break
        if not count:
            begin = max(0, some[0].find(b'"') - 20)  # so that the quote is seen
            lost[number + line] = f'{some[0][begin : begin + 40]!r}', 'quotes around a cell, and two for each one in it'
        elif count > 1 or some[0].strip():
            kept.append(b'\n'.join(some[:count]) + b'\n')
            rows.append(np.array([line]))
        at = line + (count or 1)
    return b''.join(kept), number + np.concatenate([*rows, np.arange(0)]), lost, rest


def _special_lines(text: np.ndarray, marks: np.ndarray, dialect: Dialect) -> np.ndarray:
    """Returns the lines whose quotes do not stand in pairs around whole cells, and those without a cell.

    `marks` are the places of all newlines and quotes.
    """
    is_quote = text[marks] == _QUOTE
    quotes, ends = marks[is_quote], marks[~is_quote] + 1
    if not len(ends):
        return ends
    begins = np.r_[0, ends[:-1]]
    first = text[begins]
    blank = (first == _NEWLINE) | ((first == _RETURN) & (text[np.minimum(begins + 1, len(text) - 1)] == _NEWLINE))
    until = np.cumsum(is_quote)[~is_quote]  # the quotes before the end of each line
    counts = np.diff(until, prepend=0)
    line = np.repeat(np.arange(len(ends)), counts)
    opens = (np.arange(len(quotes)) - np.repeat(until - counts, counts)) % 2 == 0
    before, after = np.where(quotes == 0, _NEWLINE, text[quotes - 1]), text[quotes + 1]
    separator = ord(dialect.separator)
    is_begin = (before == separator) | (before == _NEWLINE)
    is_end = (after == separator) | (after == _NEWLINE) | (after == _RETURN)
    is_cell = np.where(opens, is_begin, is_end)
    special = blank | (counts % 2 == 1)
    special[line[~is_cell]] = True
    return np.flatnonzero(special)


def _num_lines(lines: Sequence[bytes], width: int, dialect: Dialect) -> int | None:
    """Returns how many of the lines are the first row; 0 if its quotes are wrong, None if they are open to the end."""
    text = b''
    for count, line in enumerate(lines, 1):
        text += line if count == 1 else b'\n' + line
        if count > 1 and b'"' not in line:
            continue
        if dialect.row.fullmatch(text.removesuffix(b'\r')):
            return count if count == 1 or len(dialect.cells.findall(text)) == width else 0
        if not dialect.open_row.fullmatch(text):
            return 0
    return None
