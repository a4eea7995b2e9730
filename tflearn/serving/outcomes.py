"""Outcomes of decisions as clients report them: checked, and one line of JSON each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.serving.served_version import InvalidRequest

OUTCOMES = '/tflearn.serving.OutcomeService/Record'  # takes and answers a google.protobuf.Struct
MAX_ID = 200  # characters of an id
_MOST, _LARGEST = 10_000, 1e300  # outcomes of a message; a number
_KEYS = {'event_id', 'reward', 'time', 'outcome_id'}
_FORM = 'need {"event_id": "...", "reward": 1.0} each, and if known "time" [s since 1970] and "outcome_id"'


def lines(message: Mapping[str, Any], now: float) -> list[bytes]:
    """Returns the lines of a message.

    Args:
      message: an outcome, or {"outcomes": [...]}; see docs/your-logs.md.
      now: the time of those that have none.

    Raises:
      InvalidRequest: if it has another form.
    """
    given = message.get('outcomes', [message]) if message.keys() <= {'outcomes'} else [message]
    if not isinstance(given, Sequence) or not 1 <= len(given) <= _MOST:
        raise InvalidRequest(f'got other "outcomes"; need a list of 1 to {_MOST}')
    return [_line(each, i, now) for i, each in enumerate(given)]


def _line(outcome: Any, index: int, now: float) -> bytes:
    if not isinstance(outcome, Mapping) or not outcome.keys() <= _KEYS:
        raise InvalidRequest(f'got the outcome {index} with other keys; {_FORM}')
    for key in ('event_id', 'outcome_id'):
        value = outcome.get(key, '' if key == 'event_id' else 'none')
        if not isinstance(value, str) or not 0 < len(value) <= MAX_ID + 8:  # with the number of its row
            raise InvalidRequest(
                f'got the outcome {index} with another {key}; need text of 1 to {MAX_ID + 8} characters'
            )
    for key in ('reward', 'time'):
        value = outcome.get(key, now if key == 'time' else None)
        if type(value) not in (int, float) or not -_LARGEST < value < _LARGEST:
            raise InvalidRequest(f'got the outcome {index} with another {key}; need a finite number; {_FORM}')
    line = {
        'event_id': outcome['event_id'],
        'time': float(outcome.get('time', now)),
        'reward': float(outcome['reward']),
    }
    line |= {'outcome_id': outcome['outcome_id']} if 'outcome_id' in outcome else {}
    return json.dumps(line).encode() + b'\n'
