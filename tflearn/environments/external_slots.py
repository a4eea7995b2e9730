"""Slots: where the episodes of external simulators meet the steps of a batched environment.

Each of B slots holds at most one episode. The environment's thread takes batched steps; each
request of a client has a thread of its own, which waits here until the policy has acted. All state
is guarded by one condition variable.

    free -> observed    the environment took an observation into its time step; the policy acts on it
    observed -> asked   the action was given to the client, which now steps its simulator
    asked -> told       the client has returned the reward and the next observation
    told -> observed    they are in the environment's time step; free, if the episode has ended

A batched step ends when every client that was asked has answered. One that does not answer within
the step timeout loses its episode: the last step is dropped, the others remain data. A slot whose
episode has ended waits for the next one for a time, then it counts as vacant: nobody waits for it.

A new episode gets the free slot that has had the fewest. So each slot has its share of them if
there are fewer clients than slots, as an evaluation needs, which plays a number of episodes in
each.
"""

import collections
import secrets
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from tflearn.core import life
from tflearn.net.http_messages import HttpRefusal

_FREE, _OBSERVED, _ASKED, _TOLD = 'free', 'observed', 'asked', 'told'
_BUSY = HTTPStatus.SERVICE_UNAVAILABLE
_MAX_GONE = 10_000  # episodes that have ended, whose names are remembered


class Result(NamedTuple):
    """What a client returned for an action.

    Attributes:
      reward: the reward.
      observation: the next observation, a nest of arrays.
      terminated: whether the episode ended by itself.
      truncated: whether it was cut off.
    """

    reward: float
    observation: Any
    terminated: bool
    truncated: bool


class Slot:
    """One slot: its episode, and what has happened since the last batched step."""

    def __init__(self) -> None:
        self.state = _FREE
        self.waits_until = 0.0  # for the client's answer, or for the next episode
        self.result: Result | None = None
        self.num_episodes = 0  # since the environments were reset
        self.clear()

    def clear(self) -> None:
        """Forgets the episode."""
        self.episode: str | None = None
        self.action: Any = None
        self.num_steps = 0  # steps of the episode that were told
        self.total = 0.0


class _Begin:
    """A client that waits for a slot."""

    def __init__(self, observation: Any):
        self.observation = observation
        self.slot: Slot | None = None


class Slots:
    """See above.

    Attributes:
      num_dropped: the number of episodes whose clients did not answer in time, or gave up.
    """

    def __init__(self, num_slots: int, step_timeout_secs: float, begin_wait_secs: float):
        """
        Args:
          num_slots: B.
          step_timeout_secs: how long a batched step waits for a client that steps its simulator.
          begin_wait_secs: how long batched steps wait for the next episode of a slot whose episode
            has ended.
        """
        self.slots = [Slot() for _ in range(num_slots)]
        self.num_dropped = 0
        self._step_timeout_secs, self._begin_wait_secs = step_timeout_secs, begin_wait_secs
        self._changed = threading.Condition()
        self._begins: collections.deque[_Begin] = collections.deque()
        self._by_episode: dict[str, Slot] = {}
        self._gone: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._closed = False

    # The clients' side: any thread.

    def begin(self, observation: Any, timeout_secs: float) -> tuple[str, Any]:
        """Begins an episode. Waits for a slot at most `timeout_secs`, then for the policy.

        Returns:
          (episode, action): the episode's name, and its first action.

        Raises:
          HttpRefusal: if there is no slot in time, the collector has ended, or the environment was
            reset meanwhile.
        """
        waiting = _Begin(observation)
        with self._changed:
            self._check_open()
            if len(self._begins) >= 4 * len(self.slots):
                raise HttpRefusal(
                    _BUSY, f'{len(self._begins)} clients wait for one of {len(self.slots)} slots; try again later'
                )
            self._begins.append(waiting)
            self._changed.notify_all()
            self._changed.wait_for(lambda: waiting.slot or self._closed, timeout_secs)
            if waiting.slot is None:
                if waiting in self._begins:
                    self._begins.remove(waiting)
                self._check_open()
                raise HttpRefusal(
                    _BUSY,
                    f'all {len(self.slots)} slots are in use, or the collector waits for the learner; try again later',
                )
            episode = str(waiting.slot.episode)
            return episode, self._next_action(waiting.slot, episode)

    def step(self, episode: str, number: int | None, result: Result) -> tuple[Any, int, float]:
        """Returns a client's result to the environment,
        and waits for the next action unless the episode has ended.

        Args:
          episode: the episode's name.
          number: the number of the step, counted from 0; None takes it for the next one. A step
            that was told already, by a client that lost the answer, is answered again and not
            counted twice.
          result: what the simulator returned.

        Returns:
          (action, num_steps, total): the next action, None if the episode has ended; the steps of
          the episode so far, and the sum of its rewards.

        Raises:
          HttpRefusal: if there is no such episode any more, another request of it waits, the step
            has another number, or the collector has ended.
        """
        with self._changed:
            self._check_open()
            slot = self._slot(episode)
            if number is not None and number == slot.num_steps - 1:
                return self._next_action(slot, episode), slot.num_steps, slot.total
            if slot.state != _ASKED or number not in (None, slot.num_steps):
                raise HttpRefusal(
                    HTTPStatus.CONFLICT,
                    f'got step {"" if number is None else number} of the episode, which has '
                    f'{slot.num_steps} steps and {"needs" if slot.state == _ASKED else "computes"} the next one; send '
                    'one request at a time, in order',
                )
            slot.result, slot.state = result, _TOLD
            slot.num_steps += 1
            slot.total += result.reward
            self._changed.notify_all()
            if result.terminated or result.truncated:
                self._forget(slot, f'it has ended after {slot.num_steps} steps')
                return None, slot.num_steps, slot.total
            return self._next_action(slot, episode), slot.num_steps, slot.total

    def drop(self, episode: str) -> None:
        """Ends an episode that its client gives up; its last step is dropped.
        Raises HttpRefusal if there is none.
        """
        with self._changed:
            slot = self._slot(episode)
            self._drop(slot, 'its client has given it up')
            self._changed.notify_all()

    def close(self) -> None:
        """Answers all clients that wait: there will be no more actions."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # The environment's side: one thread.

    def act(self, actions: Sequence[Any]) -> None:
        """Sends the actions, one for each slot, to the clients whose observations they are for."""
        with self._changed:
            now = time.monotonic()
            for slot, action in zip(self.slots, actions, strict=True):
                if slot.state == _OBSERVED:
                    slot.action, slot.state, slot.waits_until = action, _ASKED, now + self._step_timeout_secs
            self._changed.notify_all()

    def wait(self, idle_secs: float) -> list[tuple[Result | None, Any]]:
        """Waits for the clients, as long as the class says;
        if there is no episode at all, `idle_secs` for one.

        Returns:
          For each slot (result, None) of a step, (None, observation) at the beginning of an
          episode, and (None, None) for a slot without an episode, also for one whose episode was
          dropped.
        """
        idle_until, signs = time.monotonic() + idle_secs, life.Signs()
        while self._must_wait(idle_until, signs):
            signs.give()  # Clients go on meanwhile.
        with self._changed:
            now = time.monotonic()
            for slot in self.slots:
                if slot.state == _ASKED and slot.waits_until <= now:
                    self._drop(slot, f'its client did not answer within {self._step_timeout_secs:g} s')
            free = [slot for slot in self.slots if slot.state == _FREE]
            # First: a client may begin its next episode before the end of this one is taken.
            results = [self._take(slot) for slot in self.slots]
            begun = self._begin_episodes(now, free)
            self._changed.notify_all()
            return [
                (None, begun[slot]) if slot in begun else (result, None)
                for slot, result in zip(self.slots, results, strict=True)
            ]

    def reset(self) -> None:
        """Drops all episodes."""
        with self._changed:
            for slot in self.slots:
                if slot.episode is not None:
                    self._drop(slot, 'the environments were reset')
                slot.state, slot.result, slot.waits_until, slot.num_episodes = _FREE, None, 0.0, 0
            self._changed.notify_all()

    def _must_wait(self, idle_until: float, signs: life.Signs) -> bool:
        """Waits for the clients until a sign of life is due;
        returns False if the batched step need not wait.
        """
        with self._changed:
            while not self._closed and (left := self._wait_secs(idle_until)) > 0:
                until_due = signs.due - time.monotonic()
                if until_due <= 0:
                    return True
                self._changed.wait(min(left, until_due))
        return False

    def _wait_secs(self, idle_until: float) -> float:
        """Returns how long to wait for the next change; 0 if the batched step need not wait."""
        now = time.monotonic()
        asked = [slot.waits_until - now for slot in self.slots if slot.state == _ASKED]
        free = [slot for slot in self.slots if slot.state == _FREE]
        expected = sorted(slot.waits_until - now for slot in free if slot.waits_until > now)
        if not asked and not self._begins and len(free) == len(self.slots):
            return max(idle_until - now, 0.0)
        # Those that have come need not be waited for.
        waits = [secs for secs in (*asked, *expected[len(self._begins) :]) if secs > 0]
        return max(waits, default=0.0)

    def _begin_episodes(self, now: float, free: Sequence[Slot]) -> dict[Slot, Any]:
        """Begins the episodes of clients that wait in free slots.
        Returns their observations by slot.
        """
        begun = {}
        for slot in sorted(free, key=lambda each: each.num_episodes)[: len(self._begins)]:
            # It is the episode that some slot waits for, which need not be this one.
            expecting = [each for each in self.slots if each.state == _FREE and each.waits_until > now]
            first = min(expecting, key=lambda each: each.waits_until, default=slot)
            first.waits_until, slot.waits_until = slot.waits_until, 0.0
            begin = self._begins.popleft()
            slot.clear()
            slot.episode, slot.state = secrets.token_hex(8), _OBSERVED
            slot.num_episodes += 1
            self._by_episode[slot.episode] = slot
            begin.slot, begun[slot] = slot, begin.observation
        return begun

    def _take(self, slot: Slot) -> Result | None:
        """Returns the result of a slot's step, if there is one."""
        if slot.state != _TOLD:
            return None
        result, slot.result = slot.result, None
        slot.state = _FREE if slot.episode is None else _OBSERVED
        slot.waits_until = time.monotonic() + self._begin_wait_secs
        return result

    def _next_action(self, slot: Slot, episode: str) -> Any:
        """Waits until the policy has acted in the episode."""
        self._changed.wait_for(lambda: self._closed or slot.episode != episode or slot.state == _ASKED)
        self._check_open()
        if slot.episode != episode:
            self._slot(episode)  # raises HttpRefusal
        return slot.action

    def _slot(self, episode: str) -> Slot:
        if episode not in self._by_episode:
            raise HttpRefusal(
                HTTPStatus.GONE,
                f'got the episode {episode!r}: {self._gone.get(episode, "there is none")}; begin another one',
            )
        return self._by_episode[episode]

    def _drop(self, slot: Slot, reason: str) -> None:
        self._forget(slot, reason)
        slot.state, slot.result, slot.waits_until = _FREE, None, 0.0
        self.num_dropped += 1

    def _forget(self, slot: Slot, reason: str) -> None:
        episode, slot.episode = str(slot.episode), None
        del self._by_episode[episode]
        self._gone[episode] = reason
        if len(self._gone) > _MAX_GONE:
            self._gone.popitem(last=False)

    def _check_open(self) -> None:
        if self._closed:
            raise HttpRefusal(_BUSY, 'the collector has ended; try again later')
