"""Shards: the replay servers of a run, as one replay. One address is a set of one.

Each shard holds what its writers send it, and is saved and restored alone. The first one also carries what is not
experience: weights, reports and credits.
"""

import dataclasses
import hashlib
import threading

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts, summed
from tflearn.replay import connection
from tflearn.replay.storage import REPLAY, STREAM, Storage


@dataclasses.dataclass(frozen=True)
class Shards:
    """The addresses of a run's replay servers, 'host:port' each, in an order that is the same in all jobs."""

    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.addresses or len(set(self.addresses)) < len(self.addresses):
            raise UserValueError(f'got replay servers at {", ".join(self.addresses)!r}; need addresses that differ')

    @classmethod
    def parse(cls, text: str) -> 'Shards':
        """Returns the shards of --replay_address, 'host:port,host:port,...'; raises ValueError if two are the same."""
        return cls(tuple(text.split(',')))

    @property
    def control(self) -> str:
        """The address of the server for weights, reports and credits."""
        return self.addresses[0]

    def ranked(self, name: str) -> tuple[str, ...]:
        """Returns the addresses in the order in which the writer `name` prefers them.

        Rendezvous hashing (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates"): each writer
        has a random order of its own. So the writers of a lost shard are divided among all others, and no other writer
        moves.
        """
        shards = range(len(self.addresses))
        return tuple(self.addresses[i] for i in sorted(shards, key=lambda i: _weight(name, i), reverse=True))

    def of_pipeline(self, pipeline: int, num_pipelines: int) -> tuple[str, ...]:
        """Returns the addresses of the shards whose tables an input pipeline reads when its mirror is filled.

        Each shard belongs to one pipeline. Only if there are fewer shards than pipelines, several read the same one.
        """
        if len(self.addresses) < num_pipelines:
            return (self.addresses[pipeline % len(self.addresses)],)
        return self.addresses[pipeline::num_pipelines]

    def check(self, storage: Storage) -> None:
        """Raises a ValueError if there are several shards, and their items cannot be drawn together."""
        replay = storage.experience.replay
        if len(self.addresses) > 1 and not storage.can_be_sharded:
            raise UserValueError(
                f'got {len(self.addresses)} replay servers with Experience.replay={replay!r}, from which the servers '
                "draw; need Prioritized, a Queue, or Uniform that the learner draws from (sampling='learner', and "
                'enough max_mirror_gb), or one server'
            )

    def counts(self) -> dict[str, TableCounts] | None:
        """Returns the counts of the first server's tables, those of the experience summed over all servers that answer.

        None while the first one does not answer.
        """
        answers = [connection.counts(address) for address in self.addresses]
        if answers[0] is None:
            return None
        parts = {name: [tables[name] for tables in answers if tables and name in tables] for name in (REPLAY, STREAM)}
        return answers[0] | {name: summed(found) for name, found in parts.items() if found}

    def wait(self, storage: Storage, timeout_secs: float, stop: threading.Event | None = None) -> None:
        """Waits for all shards, see `connection.wait_for_table`."""
        for address in self.addresses:
            connection.wait_for_table(address, REPLAY, storage.signature, timeout_secs, stop)


def _weight(name: str, shard: int) -> bytes:
    # By the index, since ports may differ after a restart of the run.
    return hashlib.blake2b(f'{name}/{shard}'.encode(), digest_size=8).digest()
