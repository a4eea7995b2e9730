"""Shards: the replay servers of a run, as one replay. One address is a set of one.

Each shard holds what its writers send it, and is saved and restored alone.
"""

import dataclasses
import hashlib
import threading

from tflearn.core.errors import UserValueError
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY, Storage


@dataclasses.dataclass(frozen=True)
class Shards:
    """The addresses of a run's replay servers, 'host:port' each, by index; '' is one that is not known."""

    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        known = [address for address in self.addresses if address]
        if not known or len(set(known)) < len(known):
            raise UserValueError(f'got replay servers at {", ".join(self.addresses)!r}; need addresses that differ')

    def ranked(self, name: str) -> tuple[str, ...]:
        """Returns the addresses in the order in which the writer `name` prefers them.

        Rendezvous hashing (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates"): each writer
        has a random order of its own. So the writers of a lost shard are divided among all others, and no other writer
        moves.
        """
        shards = sorted(range(len(self.addresses)), key=lambda i: _weight(name, i), reverse=True)
        return tuple(self.addresses[i] for i in shards if self.addresses[i])

    def of_pipeline(self, pipeline: int, num_pipelines: int) -> tuple[str, ...]:
        """Returns the addresses of the shards whose tables an input pipeline reads when its mirror is filled.

        Each shard belongs to one pipeline. Only if there are fewer shards than pipelines, several read the same one.
        """
        if len(self.addresses) < num_pipelines:
            return (self.addresses[pipeline % len(self.addresses)],)
        return self.addresses[pipeline::num_pipelines]

    def wait(self, storage: Storage, timeout_secs: float, stop: threading.Event | None = None) -> None:
        """Waits for all shards, see `backend.wait_for_table`."""
        for address in self.addresses:
            backend.wait_for_table(address, REPLAY, storage.signature, timeout_secs, stop)


def check(storage: Storage, num_shards: int) -> None:
    """Raises a ValueError if there are several shards, and their items cannot be drawn together."""
    replay = storage.experience.replay
    if num_shards > 1 and not storage.can_be_sharded:
        raise UserValueError(
            f'got {num_shards} replay servers with Experience.replay={replay!r}, from which the servers draw; need '
            "Prioritized, a Queue, or Uniform that the learner draws from (sampling='learner', and enough "
            'max_mirror_gb), or one server'
        )


def _weight(name: str, shard: int) -> bytes:
    # By the index, since ports may differ after a restart of the run.
    return hashlib.blake2b(f'{name}/{shard}'.encode(), digest_size=8).digest()
