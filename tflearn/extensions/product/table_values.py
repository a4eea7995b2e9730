"""The values of a table's columns: texts, numbers, times, lists and named numbers, and what cannot be read as these.

With `tables` the only module of pyarrow.
"""

import contextlib
import datetime
import itertools
import json
import math
import zlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tflearn.core import extras

with extras.needed_by('tflearn data import'):
    import pyarrow as pa
    import pyarrow.compute as pc

EXACT = 2.0**53 - 1  # integers up to here are exact as floats: the next one stands for two
# The spellings of floats and booleans by programs: no leading zeros, no zeros at the end but '.0', an exponent behind
# one digit. Names such as 007, 2.10 and 5e3 are none.
_DIGITS = r'\.([0-9]*[1-9]|0)'
_SPELLED = (
    rf'^-?(0|[1-9][0-9]*){_DIGITS}$|^-?[1-9]{_DIGITS}[eE][+-]?[0-9]+$|^-?[1-9][eE][+-][0-9]+$|'
    '^(-0|True|False|TRUE|FALSE)$'
)
_FIRST, _OTHERS = (np.isin(np.arange(256), [*text]) for text in (b'-0123456789TF', b'-.eETF'))  # of these

Array = Any  # a pyarrow.Array


def texts(array: Array) -> Array:
    """Returns values as text, null where nothing stands; the same text for a value in each format.

    3 and 3.0 are '3', since integers beside nulls are floats; True is 'true', and 1e-7 is '1e-07'. Of a float of 2^53
    and more nobody knows which integer it was: it is null.
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
    bounds, data = _content(array)
    is_empty = bounds[1:] == bounds[:-1]
    if is_empty.any():
        array = pc.if_else(pc.equal(array, ''), None, array)
    # The pattern takes ten times as long as to see that no text can match it.
    if not _FIRST[data[bounds[:-1][~is_empty]]].any() or not _OTHERS[data].any():
        return array
    spelled = pc.fill_null(pc.match_substring_regex(array, _SPELLED), False)
    if not pc.any(spelled).as_py():
        return array
    some = pc.filter(array, spelled).dictionary_encode()
    same = pa.array([_canonical(each) for each in some.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(array, spelled, same.take(some.indices))


def _content(array: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each text begins, and where the last one ends, int64 [N + 1]; and the bytes of all, uint8."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[array.offset :][: len(array) + 1].astype(np.int64)
    return bounds - bounds[0], np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


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
    wrong = np.zeros(len(array), bool)
    if pa.types.is_string(array.type):
        with contextlib.suppress(pa.ArrowException):  # most have no spaces, and no empty cells
            values = np.asarray(fast(array).to_numpy(zero_copy_only=False), np.float64)
            return values, np.isnan(values), np.isinf(values)
        trimmed = pc.utf8_trim_whitespace(array)
        array = pc.if_else(pc.equal(trimmed, ''), None, trimmed)
    try:
        values = np.asarray(fast(array).to_numpy(zero_copy_only=False), np.float64)
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


def lists(array: Array, width: int = 0) -> tuple[Array, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the elements of lists, how many each has, int64 [N], and which lists are missing, and which are wrong.

    Text is a JSON array, or elements with spaces between them. With a width the elements are lists of so many, one
    after the other.
    """
    wrong = np.zeros(len(array), bool)
    if not pa.types.is_list(array.type):
        text = pc.utf8_trim_whitespace(texts(array))
        is_json = pc.fill_null(pc.starts_with(text, '['), False)
        split = pc.utf8_split_whitespace(pc.if_else(is_json, pa.scalar(None, pa.string()), text))
        array = pc.if_else(pc.equal(text, ''), pa.array([[]], split.type)[0], split)
        if pc.any(is_json).as_py():
            some = pc.filter(text, is_json).dictionary_encode()
            elements = [_elements(each, width) for each in some.dictionary.to_pylist()]
            parsed = pa.array(elements, pa.list_(pa.string()))
            places = pc.cumulative_sum(is_json.cast(pa.int32()))
            found = parsed.take(some.indices).take(pc.max_element_wise(pc.subtract(places, 1), 0))
            wrong = pc.and_(is_json, pc.is_null(found)).to_numpy(zero_copy_only=False)
            array = pc.if_else(is_json, found, array)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    missing = pc.is_null(array).to_numpy(zero_copy_only=False)
    if pa.types.is_list(array.type.value_type):
        sizes = pc.fill_null(pc.list_value_length(pc.list_flatten(array)), -1).to_numpy(zero_copy_only=False)
        wrong[pc.list_parent_indices(array).to_numpy(zero_copy_only=False)[sizes != width]] = True
        array, lengths = pc.list_flatten(array.filter(pa.array(~wrong))), lengths * np.where(wrong, 0, width)
    elif width:
        wrong |= lengths % width > 0
    return pc.list_flatten(array), lengths, missing, wrong


def _elements(text: str, width: int) -> list[str | None] | None:
    """Returns the elements of a JSON array as text, with a width those of its lists; None for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text, parse_int=str, parse_float=str)
        if width and all(isinstance(each, list) and len(each) == width for each in found):
            found = list(itertools.chain.from_iterable(found))
        if not any(isinstance(each, list | dict) for each in found):
            return [None if each is None else each if isinstance(each, str) else str(each) for each in found]
    return None


def named(array: Array) -> tuple[Array, np.ndarray]:
    """Returns the names of features such as 'price:2.5' or 'red', and their numbers, [N]: 1 where there is none."""
    some = texts(array).dictionary_encode()
    pairs = [_named(each) for each in some.dictionary.to_pylist()]
    values = np.array([value for _, value in pairs], np.float64)
    return pa.array([name for name, _ in pairs], pa.string()).take(some.indices), values[some.indices.to_numpy()]


def _named(text: str) -> tuple[str, float]:
    name, colon, value = text.rpartition(':')
    try:
        # One without a name, which is that of its place, is not finite, and so refused.
        return (name, float(value) if name else math.nan) if colon else (text, 1.0)
    except ValueError:  # a name such as city:paris
        return text, 1.0


def indices(array: Array, vocabulary: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each value in a vocabulary, int64 [N], -1 for others; and which values are missing."""
    some = array.dictionary_encode() if pa.types.is_string(array.type) else array
    text = texts(some.dictionary if pa.types.is_dictionary(some.type) else some)
    found = pc.fill_null(pc.index_in(text, vocabulary), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    missing = pc.is_null(text).to_numpy(zero_copy_only=False)
    if not pa.types.is_dictionary(some.type):
        return found, missing
    of = pc.fill_null(some.indices, len(text)).to_numpy(zero_copy_only=False)
    return np.append(found, -1)[of], np.append(missing, True)[of]


def are_inexact(array: Array, missing: np.ndarray) -> np.ndarray:
    """Returns which of the missing values are floats of which `texts` does not know the integer, bool [N]."""
    found = np.zeros(len(array), bool)
    if missing.any():
        values, _, wrong = numbers(array.filter(pa.array(missing)))
        found[missing] = wrong | (np.abs(values) > EXACT)
    return found


def vocabulary(values: Collection[str]) -> Array:
    """Returns the texts as `indices` takes them."""
    return texts(pa.array(list(values), pa.string()))


def hashed(names: Array, size: int) -> np.ndarray:
    """Returns the places of names among `size`, int64 [N], by CRC-32, which every language has."""
    some = names.dictionary_encode()
    places = [zlib.crc32(name.encode()) % size for name in some.dictionary.to_pylist()]
    return np.array(places, np.int64)[some.indices.to_numpy()]


def distinct(array: Array) -> list[str]:
    """Returns the different values, or elements of lists, as text."""
    return texts(pc.unique(array)).drop_null().to_pylist()


def hashes(array: Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns a hash of each value as text, uint64 [N], the same in each format; and which values are missing."""
    text = texts(array)
    missing = pc.is_null(text).to_numpy(zero_copy_only=False)
    bounds, data = _content(pc.fill_null(text, ''))
    lengths = np.diff(bounds)
    width = (int(lengths.max(initial=0)) + 8) // 8 * 8
    flat = np.zeros((len(lengths), width), np.uint8)
    flat[np.arange(width) < lengths[:, np.newaxis]] = data
    mixed = lengths.astype(np.uint64)
    for k, word in enumerate(flat.view('<u8').T):
        after = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)  # the numbers are splitmix64's
        after = (after ^ after >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = np.where(lengths > 8 * k, after ^ after >> np.uint64(32), mixed)
    return mixed, missing


def named_features(array: Any, is_list: bool) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads named numbers.

    Args:
      array: texts, or lists of texts.
      is_list: which of both.

    Returns:
      The name and the number of each, the row in which it is and the element of that row's list, [M]; and which rows
      are no such texts, [N].
    """
    num_rows = len(array)
    rows, places, wrong = np.arange(num_rows), np.zeros(num_rows, np.int64), np.zeros(num_rows, bool)
    if is_list:
        array, lengths, _, wrong = lists(array)
        rows = np.repeat(rows, lengths)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    flat, counts, _, of_elements = lists(array)
    wrong[rows[of_elements]] = True
    names, values = named(flat)
    return names, values, np.repeat(rows, counts), np.repeat(places, counts), wrong
