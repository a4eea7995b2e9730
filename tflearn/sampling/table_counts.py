"""The counts of replay tables as JSON, and what reads like Reverb's `TableInfo` made of them."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

from tflearn.replay.storage import REPLAY, STREAM

_COUNTS = ('current_size', 'max_size', 'inserts', 'samples')


def summed(infos: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the counts of the tables of the first of several servers; those of the experience are summed.

    Args:
      infos: of each server, `reverb.TableInfo` by table name; at least one.
    """
    tables = {name: _counts(info) for name, info in infos[0].items()}
    for name in (REPLAY, STREAM):
        for other in infos[1:]:
            if name in tables and name in other:
                more = _counts(other[name])
                tables[name].update({key: tables[name][key] + more[key] for key in _COUNTS})
    return tables


def _counts(info: Any) -> dict[str, Any]:
    limiter = info.rate_limiter_info
    return {
        'current_size': info.current_size,
        'max_size': info.max_size,
        'inserts': limiter.insert_stats.completed,
        'samples': limiter.sample_stats.completed,
        'samples_per_insert': limiter.samples_per_insert,
        'min_diff': limiter.min_diff,
        'max_diff': limiter.max_diff,
    }


def as_table_info(counts: Mapping[str, Any]) -> Any:
    """Returns what the counts of a table were made of, as far as they go; raises KeyError if one is missing."""
    limiter = types.SimpleNamespace(
        insert_stats=types.SimpleNamespace(completed=int(counts['inserts'])),
        sample_stats=types.SimpleNamespace(completed=int(counts['samples'])),
        **{name: float(counts[name]) for name in ('samples_per_insert', 'min_diff', 'max_diff')},
    )
    sizes = {name: int(counts[name]) for name in ('current_size', 'max_size')}
    return types.SimpleNamespace(**sizes, rate_limiter_info=limiter)
