"""The tensors of TensorFlow Serving's REST interface:
JSON in rows ("instances") or columns ("inputs"), and back.
"""

import base64
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tflearn.extensions.serving.served_version import InvalidRequest, Meaning, Signature
from tflearn.net import http_messages, json_arrays

_MAX_LISTS = 1 << 17

# Those of JSON for each of a dtype; true and false are 1 and 0, as in logs.
_KINDS = {'i': 'iub', 'u': 'iub', 'f': 'iufb', 'V': 'iufb', 'b': 'b', 'O': 'O'}


class PredictJson(NamedTuple):
    """A request.

    Attributes:
      form: 'instances' or 'inputs'.
      values: a tensor for each input by name, or that of the only input: of 64 bits, bool, or
        bytes; where there are nulls, of objects.
      signature: the signature's name, '' for the default one.
      output_filter: the outputs that are asked for; () is all.
    """

    form: str
    values: Mapping[str, np.ndarray] | np.ndarray
    signature: str
    output_filter: Sequence[str]

    def named(self, signature: Signature) -> Mapping[str, np.ndarray]:
        """Returns the values by name. Raises InvalidRequest if they lack a name that the signature needs."""
        if self.form == 'instances' and not signature.batched:
            raise InvalidRequest(f'got "instances" for {signature.name}, whose inputs are no batches; need "inputs"')
        if not isinstance(self.values, np.ndarray):
            return self.values
        if len(signature.inputs) != 1:
            raise InvalidRequest(f'got "{self.form}" without names; need those of {sorted(signature.inputs)}')
        return {next(iter(signature.inputs)): self.values}


def parse_object(body: memoryview) -> dict[str, Any]:
    """Returns the JSON object in a body, of few lists. Raises ValueError if there is none."""
    data = bytes(body)
    # Each takes many times its bytes in memory.
    if (count := data.count(b'[') + data.count(b'{')) > _MAX_LISTS:
        raise InvalidRequest(f'got {count} lists and objects; need at most {_MAX_LISTS}')
    return http_messages.json_object(data)


def parse(body: memoryview) -> PredictJson:
    """Returns the request in a body. Raises ValueError if there is none."""
    message = parse_object(body)
    forms = [form for form in ('instances', 'inputs') if form in message]
    signature, names = message.get('signature_name', ''), message.get('output_filter', [])
    if len(forms) != 1:
        raise InvalidRequest(f'got {" and ".join(forms) or "neither"}; need either "instances" or "inputs"')
    if not isinstance(signature, str) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise InvalidRequest('got another signature_name or output_filter; need a string, or a list of strings')
    if wrong := [text for text in (signature, *names) if not text.isprintable()]:
        raise InvalidRequest(f'got {wrong[0]!a:.80} as signature_name or in output_filter; need printable names')
    form = forms[0]
    given = message[form]
    if form == 'instances':
        given = _columns(given)
    if not _is_object(given):
        return PredictJson(form, _tensor(form, given), signature, names)
    return PredictJson(form, {name: _tensor(name, value) for name, value in given.items()}, signature, names)


def to_array(name: str, values: np.ndarray, dtype: tf.DType, meaning: Meaning | None = None) -> np.ndarray:
    """Returns a tensor of a dtype. Raises InvalidRequest if the values are of another kind.

    Args:
      meaning: what texts and nulls are, where the dtype is one of numbers.
    """
    wanted, meaning = np.dtype(dtype.as_numpy_dtype), meaning or Meaning()
    if meaning.are_numbers and dtype.is_integer:
        for value in values.ravel().tolist():
            if type(value) in (int, float):
                known = ', '.join(json.dumps(text) for text in itertools.islice(meaning.numbers, 3))
                raise InvalidRequest(
                    f'got {value} in {name}, a category whose texts are numbers, so it may be the text or its place in '
                    f'the vocabulary; need a text, such as {known}'
                )
    if values.dtype.kind in 'Ob' and (wanted.kind not in 'Ob' or None in values.ravel().tolist()):
        values = _understood(name, values, dtype, meaning)
    if values.size and values.dtype.kind not in _KINDS[wanted.kind]:
        raise InvalidRequest(f'got {name} of {values.dtype}; need {dtype.name}')
    if dtype.is_integer and values.size and not dtype.min <= values.min() <= values.max() <= dtype.max:
        raise InvalidRequest(f'got {name} with values from {values.min()} to {values.max()}; need {dtype.name}')
    with np.errstate(over='ignore'):
        return values.astype(wanted)


def _understood(name: str, values: np.ndarray, dtype: tf.DType, meaning: Meaning) -> np.ndarray:
    """Returns the numbers that texts and nulls stand for.
    Raises InvalidRequest if they stand for none.
    """
    found = []
    for value in values.ravel().tolist():
        if value is None and meaning.missing is not None and dtype != tf.string:
            found.append(meaning.missing if dtype.is_floating else int(meaning.missing))
        elif (text := _category(value)) is not None and meaning.numbers and dtype.is_integer:
            found.append(meaning.numbers.get(text.decode(errors='replace'), 0))
        elif value is None or isinstance(value, bytes):
            raise InvalidRequest(f'got {"null" if value is None else "a text"} in {name}; need {dtype.name}')
        else:
            found.append(value)
    return np.array(found).reshape(values.shape)


def unknown_texts(
    values: Mapping[str, np.ndarray], numbers: Mapping[str, np.ndarray], meanings: Mapping[str, Meaning]
) -> dict[str, np.ndarray]:
    """Returns by the inputs' names the texts for which the vocabulary has no number, None elsewhere.

    Args:
      values: the tensors of a request, by name.
      numbers: what `to_array` made of them.
      meanings: of the inputs that were columns of a log.
    """
    found = {}
    for name, array in values.items():
        if array.dtype.kind in 'Ob' and name in meanings and numbers[name].dtype.kind in 'iu':
            texts = np.array([_category(value) for value in array.ravel().tolist()], object)
            texts[numbers[name].ravel() != 0] = None
            found[name] = texts.reshape(array.shape)
    return found


def _category(value: Any) -> bytes | None:
    """Returns the text of a category in UTF-8; None for a null or a number."""
    return str(value).lower().encode() if isinstance(value, bool) else value if isinstance(value, bytes) else None


def answer(form: str, outputs: Mapping[str, np.ndarray], actions: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the message with the outputs of a request; the name of an only output is left out.

    Args:
      actions: the texts of the actions, if they are categories: they stand beside the outputs, which are those of
        TensorFlow Serving.
    """
    lists = {name: _json(name, output) for name, output in outputs.items()}
    chosen = outputs.get('action')
    more: dict[str, Any] = {}
    if actions and chosen is not None and chosen.dtype.kind == 'i' and (chosen < len(actions)).all():
        more = {'texts': {'action': np.array(actions, object)[chosen].tolist()}}
    if form == 'inputs':
        return {'outputs': _only(lists), **more}
    rows = [_only(dict(zip(lists, row, strict=True))) for row in zip(*lists.values(), strict=True)]
    return {'predictions': rows, **more}


def _columns(rows: Any) -> Any:
    """Returns rows of named values as named columns;
    other rows are the column of the only input.
    """
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest('got other "instances"; need a list of one row or more')
    if not any(map(_is_object, rows)):
        return rows
    if not all(map(_is_object, rows)) or any(row.keys() != rows[0].keys() for row in rows):
        raise InvalidRequest('got "instances" of several kinds; need objects with the same names, or values only')
    return {name: [row[name] for row in rows] for name in rows[0]}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_binary(value)


def _is_binary(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {'b64'} and isinstance(value['b64'], str)


def _tensor(name: str, value: Any) -> np.ndarray:
    """Returns the tensor in a nested list. Raises ValueError if there is none."""
    values, shape, kinds = json_arrays.flattened(name, value)
    known = kinds - {type(None)}
    if kinds and known <= {str, dict}:
        texts = [each if each is None else _bytes(name, each) for each in values]
        return np.array(texts, np.object_).reshape(shape)
    if known <= {bool, int, float} and (known < kinds or {bool} < known):
        return np.array(values, np.object_).reshape(shape)
    return json_arrays.to_array(name, values, shape, kinds)


def _bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode(errors='surrogatepass')
    if not _is_binary(value):
        raise InvalidRequest(f'got {name[:80]} with an object; need values, or {{"b64": ...}}')
    try:
        return base64.b64decode(value['b64'], validate=True)
    except ValueError as error:
        raise InvalidRequest(f'got {name[:80]} with {value["b64"][:80]!r} ({error}); need Base64') from error


def _json(name: str, array: np.ndarray) -> Any:
    if array.dtype.kind in 'OS':
        is_binary = name.endswith('_bytes')
        return np.vectorize(_encoded if is_binary else _text, otypes=[object])(array).tolist()
    if array.dtype.itemsize < 8 and array.dtype.kind not in 'iub':  # 0.2, not 0.20000000298
        array = array.astype(np.float32).astype(str).astype(np.float64)
    return array.tolist()


def _encoded(value: bytes) -> dict[str, str]:
    return {'b64': base64.b64encode(value).decode()}


def _text(value: bytes) -> str:
    return value.decode(errors='replace')


def _only(values: Mapping[str, Any]) -> Any:
    return next(iter(values.values())) if len(values) == 1 else values
