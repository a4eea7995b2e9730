"""Vowpal Wabbit's decisions for several slots: its labels `ccb` and `slates`, and the same in DSJSON.

Slots of `ccb` take their items from one list, each without what the slots before have taken, and each has its cost.
Slots of `slates` have a list each, and one cost together, which the last one has here: it is known when all are chosen.

See the pages Conditional-Contextual-Bandit and Slates of https://github.com/VowpalWabbit/vowpal_wabbit/wiki.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tflearn.core.errors import UserValueError

KINDS = 'ccb', 'slates'


class Outcome(NamedTuple):
    """What was chosen for a slot: the item, its probability given the slots before, and the slot's cost."""

    item: int
    probability: float
    cost: float


class Slot(NamedTuple):
    """A slot, what could be chosen for it, and what was.

    Attributes:
      actions: the features of the items.
      mask: the items that could be chosen.
      outcome: what was.
      text: the features of the slot.
    """

    actions: Sequence[str]
    mask: Sequence[int]
    outcome: Outcome
    text: str = ''


def of_lines(lines: Sequence[tuple[Sequence[str], str]]) -> list[Slot]:
    """Returns the slots of a decision; none if it has no label.

    Args:
      lines: the words before the bar of each line, such as `ccb slot 1:0:0.5`, and its features.

    Raises:
      ValueError: if it is no such decision.
    """
    kind = lines[0][0][0]
    roles = [words[1] if words[:1] == [kind] and words[1:] else 'none' for words, _ in lines]
    count = roles.count('action')
    if roles != ['shared'] + ['action'] * count + ['slot'] * max(1, len(lines) - 1 - count):
        raise UserValueError(f'got the lines {", ".join(roles):.60}; need {kind} shared, then actions, then slots')
    actions, slots = lines[1 : 1 + count], lines[1 + count :]
    labels = [next((word for word in words[2:] if ':' in word), '') for words, _ in slots]
    texts = [text for _, text in slots]
    if kind == 'slates':
        costs = lines[0][0][2:]
        if len(costs) != any(labels):
            raise UserValueError(f'got {len(costs)} costs of a slate; need one, and a label for each slot, or none')
        found = [_outcome(label, 'item:probability', *costs) for label in labels]
        return _slates([(_integer(words[2:3], 'slot'), text) for words, text in actions], found, texts)
    listed = [next((word for word in words[2:] if ':' not in word), '') for words, _ in slots]
    included = [[_integer([each], 'item') for each in word.split(',')] if word else None for word in listed]
    found = [_outcome(label, 'item:cost:probability') for label in labels]
    return _ccb([text for _, text in actions], found, included, texts)


def _outcome(label: str, form: str, *costs: str) -> Outcome | None:
    """Returns what was chosen, which stands first, and behind it perhaps what else could be."""
    parts = label.partition(',')[0].split(':')
    if label and len(parts) != form.count(':') + 1:
        raise UserValueError(f'got the label {label:.60}; need {form}')
    cost = [*costs, *parts[1:]][:1]
    return Outcome(_integer(parts[:1], 'item'), float(parts[-1]), float(*cost)) if label else None


def _integer(words: Sequence[str], what: str) -> int:
    if len(words) != 1 or not words[0].isdecimal():
        raise UserValueError(f'got {", ".join(words) or "nothing"} as the number of the {what}; need an integer from 0')
    return int(words[0])


def of_event(event: Any, text_of: Callable[[Any], str]) -> list[Slot]:
    """Returns the slots of an event of DSJSON; none if it has no label.

    Args:
      event: the object; another one than DSJSON's raises what Python does.
      text_of: returns the features of an item or slot.
    """
    items, slots = event['c']['_multi'], event['c']['_slots']
    outcomes = event.get('_outcomes', [])
    if outcomes and len(outcomes) != len(slots):
        raise UserValueError(f'got {len(outcomes)} outcomes of {len(slots)} slots; need one for each')
    if not outcomes:
        return []
    first = lambda value: value[0] if isinstance(value, list) else value  # noqa: E731
    chosen = [(first(each['_a']), first(each['_p'])) for each in outcomes]
    texts, of_items = [text_of(each) for each in slots], [text_of(each) for each in items]
    if any('_slot_id' in each for each in items):
        cost = event['_label_cost']
        places = [each['_slot_id'] for each in items]
        found = [Outcome(*one, cost) for one in chosen]
        return _slates(list(zip(places, of_items, strict=True)), found, texts)
    found = [Outcome(*one, each['_label_cost']) for one, each in zip(chosen, outcomes, strict=True)]
    return _ccb(of_items, found, [each.get('_inc') for each in slots], texts)


def _ccb(
    actions: Sequence[str],
    chosen: Sequence[Outcome | None],
    included: Sequence[Sequence[int] | None],
    texts: Sequence[str],
) -> list[Slot]:
    taken, slots = set[int](), list[Slot]()
    for outcome, listed, text in zip(_labelled(chosen), included, texts, strict=False):
        allowed = range(len(actions)) if listed is None else listed
        slots.append(_slot(actions, [i for i in allowed if i not in taken], outcome, text, len(slots)))
        taken.add(outcome.item)
    return slots


def _slates(items: Sequence[tuple[int, str]], chosen: Sequence[Outcome | None], texts: Sequence[str]) -> list[Slot]:
    slots = list[Slot]()
    for number, (outcome, text) in enumerate(zip(_labelled(chosen), texts, strict=False)):
        actions = [features for slot, features in items if slot == number]
        cost = outcome.cost if number == len(texts) - 1 else 0.0
        slots.append(_slot(actions, range(len(actions)), outcome._replace(cost=cost), text, number))
    return slots


def _labelled(chosen: Sequence[Outcome | None]) -> list[Outcome]:
    """Returns the outcomes; none if no slot has one. Without one of them the others' choices are not known."""
    found = [each for each in chosen if each]
    if found and len(found) < len(chosen):
        raise UserValueError(f'got {len(found)} labelled slots of {len(chosen)}; need all, or none')
    return found


def _slot(actions: Sequence[str], mask: Sequence[int], outcome: Outcome, text: str, number: int) -> Slot:
    if outcome.item not in mask or min(mask) < 0 or max(mask) >= len(actions):
        raise UserValueError(
            f'got the item {outcome.item} in slot {number}, of {list(mask)}; need one of {len(actions)} items that no '
            'slot before it has'
        )
    return Slot(actions, mask, outcome, text)
