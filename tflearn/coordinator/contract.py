"""The contract of a run: what must be equal in all of its jobs, as JSON.

Signatures compare shapes and types; with another discount or another reward everything would fit, so settings are in it
too. The first replay server makes it, from its own environment and agent, or else the learner.
"""

from collections.abc import Mapping
from typing import Any

_MOST_NAMED = 3
_WHAT = {
    'variables': 'another network',
    'signature': 'other data',
    'settings': 'other settings',
    'shards': 'another number of replay servers',
    'formats': 'another version of tflearn',
}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> str:
    """Returns the error of a job whose contract is another one; it names the first differences."""
    for part in ('formats', 'variables', 'signature', 'settings', 'shards'):
        if part not in ours or part not in theirs or ours[part] == theirs[part]:
            continue
        here, there = ours[part], theirs[part]
        names = {**theirs.get('_names', {}), **ours.get('_names', {})}
        named = [
            f'{names.get(name, name)} is {there.get(name, "absent")} there, {here.get(name, "absent")} here'
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
        return (
            f'got {what} for {_WHAT[part]}: {"; ".join(named[:_MOST_NAMED])}; need equal ones in all jobs of a run; '
            'start all with the same gin file'
        )
    return f'got {what} for another run; need equal settings in all jobs; start all with the same gin file'
