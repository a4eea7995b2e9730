"""The functions in Lua that a server runs atomically (functions.lua); the replay server job loads them there.

All items of a server are entries of one stream. An entry's id has two numbers, see `entry_id`: so many items were
inserted into the table that is scanned, and so many into the queue, with this one. So the ids are the counts; nothing
has to be counted besides, and nothing is counted wrongly if a client dies. The readers of the queue are one consumer
group, whose last delivered id says what was drawn. An entry's only field is named after the tables that have it, and
holds the item's bytes.

A function copies what it is given, which is most of the work if that is large. So large items are added by commands of
the server, XADD, in a transaction. Before each of them a function sets the stream's last id so that its next one is the
item's, and gives the stream another name, the only one that these commands know, if there is room.

A writer that finds the queue full leaves its name, and waits for a message to it: how many items it may send.
A call that was taken whole leaves its number for a minute: the next one, if it was sent before the answer, needs it.
"""

import pathlib
import re

ITEMS, STATE, BLOCKED, PLACE = KEYS = 'tflearn:items', 'tflearn:state', 'tflearn:blocked', 'tflearn:place'
GROUP = 'tflearn'
NO_TABLES = re.compile('NOTABLES|Function not found')  # in the errors of a server that has none of our tables
INSERT, DELIVERED, STATUS = 'tflearn_insert', 'tflearn_delivered', 'tflearn_status'
MAKE_PLACE, PLACED = 'tflearn_make_place', 'tflearn_placed'
_FIRST = 1 << 50  # later than any clock's milliseconds: so XADD takes the number after the last one


def entry_id(scanned: int, queued: int) -> str:
    """Returns the id of an item with which so many were inserted into the two tables."""
    return f'{_FIRST + scanned}-{queued + 1}'


def counts(entry: bytes) -> tuple[int, int]:
    """Returns the numbers of `entry_id`."""
    scanned, queued = entry.split(b'-')
    return int(scanned) - _FIRST, int(queued) - 1


LIBRARY = f'#!lua name=tflearn\nlocal first = {_FIRST}\n' + (
    pathlib.Path(__file__).with_suffix('.lua').read_text(encoding='utf-8')
)
