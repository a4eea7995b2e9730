"""The fields of requests to a coordinator:
what its clients will get of them must be such that they can use it.

A number outside of its range would not fail here, but in the job that reads it next, and again in
each that is started after that one. So it is refused by its name where it enters. What is kept of
all requests together is bounded too.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from tflearn.coordinator import control
from tflearn.core import settings
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range
from tflearn.core.table_counts import TableCounts
from tflearn.core.texts import check_text

WORKING, ENDED = 'working', 'ended'
_MAX_INDEX = 9_999
_MAX_TABLES = 8  # of a replay server
_MAX_PARTS, _MAX_VALUE = 16, 1 << 16  # of a contract; characters of one of its values
_MAX_SENDERS = 100_000  # that a learner knows of all sessions of a run
_RULES = settings.rules(
    {
        'index': Annotated[int, Range(least=0, most=_MAX_INDEX)],
        'epoch': Annotated[int, Range(least=0, most=1 << 62)],
        'after': control.COUNT,
        'number': control.COUNT,
        'wait': Annotated[float, Range(least=0)],
        'state': Literal['working', 'ended'],
    }
)


def check(message: Mapping[str, Any]) -> None:
    """Raises ValueError or TypeError for a number or a choice of a request that is outside of its range."""
    settings.check(_RULES, '', message)


def index(text: str) -> int:
    """Returns the index in a path. Raises ValueError if it is none."""
    if not text.isdecimal() or len(text) > 8 or _RULES['index'].error('index', int(text)):
        raise UserValueError(f'got the index {text!r}; need that of a replay server, at most {_MAX_INDEX}')
    return int(text)


def check_registration(message: Mapping[str, Any]) -> None:
    """Raises ValueError for a role, an index, an address or a contract that the run's other jobs could not use."""
    check(message)
    check_text('role', message['role'])
    if message['address']:
        check_text('address', message['address'])
    contract = message['contract']
    if len(contract) > _MAX_PARTS:
        raise UserValueError(f'got a contract of {len(contract)} parts; need at most {_MAX_PARTS}')
    for part, values in contract.items():
        check_text('the name of a part of contract', part)
        if not isinstance(values, dict):
            raise UserValueError(f'got contract.{part}={values!r:.40}; need an object')
        for name, value in values.items():
            check_text(f'a name in contract.{part}', name)
            _check_value(f'contract.{part}.{name}', value, part == 'shards')
    if 'shards' in contract and contract['shards'].keys() != {'number'}:
        raise UserValueError(f'got contract.shards={contract["shards"]!r:.80}; need an object with number')


def _check_value(what: str, value: Any, is_number: bool) -> None:
    if isinstance(value, str) and not is_number and len(value) <= _MAX_VALUE:
        return
    if error := _RULES['index'].error(what, value):
        raise UserValueError(str(error) + ('' if is_number else f', or a text of at most {_MAX_VALUE} characters'))


def check_reports(message: Mapping[str, Any]) -> None:
    """Raises ValueError for numbers by sender that no coordinator has given."""
    check(message)
    rule = settings.Rule(control.COUNT)
    for name in ('acknowledged', 'env_steps'):
        control.check_numbers(name, message[name], rule, _MAX_SENDERS)


def tables(message: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the counts of tables, by name. Raises ValueError if a table has others than `TableCounts`."""
    if len(message) > _MAX_TABLES:
        raise UserValueError(f'got the counts of {len(message)} tables; need at most {_MAX_TABLES}')
    for name in message:
        check_text('the name of a table', name)
    return {name: TableCounts.parse(fields, name).as_json() for name, fields in message.items()}
