"""Vowpal Wabbit's decisions among items -> rows of a table: its text with a line for each action, and DSJSON.

A row has the columns `COLUMNS`. Features are texts with spaces between them, each with its namespace, such as
`User^age:34 User^country=de`; `actions` has such a text for each item. Rewards are the negative costs. A decision for
several slots has a row for each slot, in their order, which is at `position`: see `vw_slots`.

The text is that of https://github.com/VowpalWabbit/vowpal_wabbit/wiki/Input-format, with labels of
https://github.com/VowpalWabbit/vowpal_wabbit/wiki/Contextual-Bandit-algorithms. DSJSON is what Azure Personalizer and
`vw --dsjson` have: one object in a line; as there, names that begin with _ are no features, and spaces, colons and
bars in strings become _.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tflearn.core.errors import UserValueError
from tflearn.extensions.product import vw_slots
from tflearn.extensions.product.csv_rows import Reason
from tflearn.extensions.product.vw_slots import Outcome, Slot

DROP_PROBABILITY = 'pdrop'
COLUMNS = (
    'shared', 'actions', 'action', 'mask', 'reward', 'probability', 'id', 'time', 'position', 'slot', DROP_PROBABILITY,
)  # fmt: skip
UNLABELLED = 'decisions without a cost'
_FAULTS = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
_SHOWN = 60

# A decision: its rows, none if nothing came of it; None if it was not shown; or why it cannot be read.
Found = list[dict[str, Any]] | Reason | None


def is_dsjson(data: bytes) -> bool:
    """Returns whether JSON lines that begin so are DSJSON."""
    return data.startswith(b'{"_label_') or b'"_outcomes":' in data.partition(b'\n')[0]


def of_text(lines: Iterable[bytes]) -> Iterator[tuple[int, Found]]:
    """Yields the number of the first line of each decision, and the decision, which an empty line ends."""
    some: list[bytes] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            some.append(line)
        elif some:
            yield number - len(some), _of_lines(some)
            some = []
    if some:
        yield number + 1 - len(some), _of_lines(some)


def _of_lines(lines: Sequence[bytes]) -> Found:
    try:
        parsed = [_line(line.decode()) for line in lines]
        has_slots, is_shared = parsed[0][0][:1] in ([each] for each in vw_slots.KINDS), parsed[0][0] == ['shared']
        if has_slots:
            slots = vw_slots.of_lines([(words, text) for words, _, text in parsed])
        else:
            texts = [text for *_, text in parsed[is_shared:]]
            outcome = _outcome([words for words, *_ in parsed[is_shared:]])
            slots = [Slot(texts, range(len(texts)), outcome)] if outcome else []
    except ValueError as error:
        return f'{lines[0][:_SHOWN]!r} ({error})', 'lines with |: shared, if any, then one for each action'
    tags = [tag for _, tag, _ in parsed if tag]
    return _rows(parsed[0][2] if has_slots or is_shared else '', slots, tags[0] if tags else None)


def _outcome(labels: Sequence[Sequence[str]]) -> Outcome | None:
    """Returns which action is labelled, its cost and its probability; None if none is."""
    given = [(i, words) for i, words in enumerate(labels) if words]
    if len(given) > 1 or not labels or any(len(words) > 1 for _, words in given):
        raise UserValueError(f'got {len(given)} labelled actions of {len(labels)}; need one, without a weight')
    for i, (text,) in given:
        parts = text.split(':')
        if len(parts) != 3:
            raise UserValueError(f'got the label {text[:_SHOWN]!r}; need action:cost:probability')
        return Outcome(i, float(parts[2]), float(parts[1]))
    return None


def _line(text: str) -> tuple[list[str], str, str]:
    """Returns the label of a line, its tag, and its features."""
    head, bar, rest = text.partition('|')
    if not bar:
        raise UserValueError(f'got {text[:_SHOWN]!r} without |; need one')
    words = head.split()
    # A tag touches the bar, or begins with a quote.
    is_tag = words and (words[-1].startswith("'") or not head[-1].isspace())
    tag = words.pop().removeprefix("'") if is_tag else ''
    return words, tag, ' '.join(_features(rest))


def _features(text: str) -> Iterator[str]:
    for part in text.split('|'):
        words, prefix, scale = part.split(), '', 1.0
        if words and not part[0].isspace():
            name, _, number = words.pop(0).partition(':')
            prefix, scale = f'{name}^', float(number or 1)
        for word in words:
            yield prefix + (word if scale == 1 else _scaled(word, scale))


def _scaled(word: str, scale: float) -> str:
    name, colon, number = word.rpartition(':')
    try:
        return f'{name}:{float(number) * scale!r}' if colon else f'{word}:{scale!r}'
    except ValueError:  # a text, such as city:paris, which no scale concerns
        return word


def of_dsjson(lines: Iterable[bytes]) -> Iterator[tuple[int, Found]]:
    """Yields the number of each line that is not empty, and its decision."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, _of_event(json.loads(line))
            except _FAULTS as error:
                yield number, (f'{line[:_SHOWN]!r} ({error!r})', 'a decision of DSJSON')


def _of_event(event: Any) -> Found:
    context = event['c']
    text_of = lambda value: ' '.join(_named(value))  # noqa: E731
    # A decision that was not shown is no evidence.
    if not _is_activated(event) or any(each.get('_skipLearn') for each in event.get('_outcomes', [])):
        return None
    if '_slots' in context:
        slots = vw_slots.of_event(event, text_of)
    elif '_label_cost' not in event:
        slots = []
    else:
        index = event['_labelIndex'] if '_labelIndex' in event else event['_label_Action'] - 1
        texts = [text_of(each) for each in context['_multi']]
        outcome = Outcome(index, event['_label_probability'], event['_label_cost'])
        slots = [Slot(texts, range(len(texts)), outcome)]
    dropped = event.get(DROP_PROBABILITY, 0.0)
    return _rows(text_of(context), slots, event.get('EventId'), event.get('Timestamp'), dropped)


def _is_activated(event: Any) -> bool:
    """Returns whether the decision was shown: a deferred one is when an event of it says so.

    What has joined the events has perhaps decided it: then `_skipLearn` is there.
    """
    if '_skipLearn' in event or not event.get('DeferredAction'):
        return not event.get('_skipLearn')
    return any(each.get('ActionTaken') for each in event.get('o', []))


def unweighted(found: Found) -> Reason | None:
    """Returns what is wrong with a decision that others were dropped beside, if its weight is not read."""
    dropped = found[0][DROP_PROBABILITY] if isinstance(found, list) and found else 0
    if dropped == 0:
        return None
    return f'{DROP_PROBABILITY} = {dropped!r:.60}', f"drop_probability = '{DROP_PROBABILITY}' in the column map"


def _named(value: Any, name: str = '') -> Iterator[str]:
    """Yields the features of nested objects."""
    text = re.sub(r'[\s|:]', '_', f'{name}={value}' if isinstance(value, str) else name)
    if isinstance(value, dict):
        for key, each in value.items():
            if not key.startswith('_'):
                yield from _named(each, f'{name}^{key}' if name else key)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _named(each, name if isinstance(each, dict | str) else f'{name}^{i}')
    elif isinstance(value, str) or value is True:
        yield text
    elif value is not None and value is not False:
        yield f'{text}:{value!r}'


def _rows(
    shared: str, slots: Sequence[Slot], name: str | None, time: str | None = None, dropped: Any = 0.0
) -> list[dict[str, Any]]:
    rows = []
    for position, (actions, mask, (index, probability, cost), text) in enumerate(slots):
        values = shared, actions, index, list(mask), 0.0 - cost, probability, name, time, position, text, dropped
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows
