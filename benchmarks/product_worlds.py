"""The worlds of `product_loop`: a news page whose readers' tastes turn, a compiler whose programs grow.

A world answers what a decision would have been worth, so that the regret of a policy is known. What it learns of a
policy it asks of the server, through `ask`; what came of the decisions it returns as rewards by their ids.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tflearn.extensions.tasks import inlining, recommender

ROWS = 100  # sessions that are asked for at the same time
NUM_JUDGED = 2_000  # sessions by which a policy's regret is computed
_OBSERVATION = 'observation_'


class Request(NamedTuple):
    """A request to the server: arrays [B, ...] by their names, and the session that it belongs to."""

    event_id: str
    inputs: Mapping[str, np.ndarray]
    session: str = ''


class Logged(NamedTuple):
    """A decision of the system before: a line of its log without the time, and its reward."""

    line: dict[str, Any]
    reward: float


Ask = Callable[[Sequence[Request]], list[np.ndarray]]


class World(Protocol):
    """What a product decides, and what comes of it.

    Attributes:
      columns: the column map of its log.
      training: gin statements of the loop: the agent.
      bindings: gin statements of its training.
      margin: that of the gate, in the unit of the reward.
      steps: decisions of a session.
    """

    columns: str
    training: str
    bindings: Sequence[str]
    margin: float
    steps: int

    def before(self, random: np.random.Generator, sessions: int) -> Iterator[Logged]:
        """Yields the decisions of the system that was there before."""

    def decide(self, random: np.random.Generator, number: int, name: str, ask: Ask) -> list[tuple[str, float]]:
        """Asks for the decisions of `ROWS` sessions of a round; returns their ids with their rewards."""

    def regret(self, version: pathlib.Path, number: int) -> float:
        """Returns how much less the greedy actions of a policy earn than the best, with the sessions of a round."""


class News:
    """Readers are shown one of 10 candidates; what is known of them comes to mean another taste."""

    training, steps, margin = 'dqn_news', 1, 0.05
    _CANDIDATES, _DRIFT = 10, 0.15  # radians in each round

    def __init__(self, num_items: int):
        """Takes the number of items, which are the actions."""
        self._items = recommender.embeddings(num_items)
        self.bindings = (
            f'recommender.embeddings.num_items = {num_items}',
            f'recommender.make.num_items = {num_items}',
            'train.StopConditions.num_train_steps = 500',
        )
        # Items and tastes have the length 1; five deviations of the noise.
        self.columns = f"""
action = {{kind = 'integer', high = {num_items - 1}}}
reward_range = [-1.5, 1.5]

[observation]
user = {{column = 'observation_user', length = 16}}
candidates = {{kind = 'mask', column = 'mask'}}
"""

    def before(self, random: np.random.Generator, sessions: int) -> Iterator[Logged]:
        """See `World`: random candidates."""
        tastes, candidates = self._readers(random, sessions)
        actions = candidates[np.arange(sessions), random.integers(0, self._CANDIDATES, sessions)]
        for i, reward in enumerate(self._rewards(random, tastes, actions)):
            line = {'id': f'before-{i}', 'action': int(actions[i]), 'probability': 1 / self._CANDIDATES}
            line |= {'observation_user': tastes[i].round(5).tolist(), 'mask': candidates[i].tolist()}
            yield Logged(line, reward)

    def decide(self, random: np.random.Generator, number: int, name: str, ask: Ask) -> list[tuple[str, float]]:
        """See `World`: all readers in one request."""
        tastes, candidates = self._readers(random, ROWS)
        (actions,) = ask([Request(name, self._shown(tastes, candidates, number))])
        return [(f'{name}-{i}', reward) for i, reward in enumerate(self._rewards(random, tastes, actions))]

    def regret(self, version: pathlib.Path, number: int) -> float:
        """See `World`."""
        tastes, candidates = self._readers(np.random.default_rng(12345 + number), NUM_JUDGED)
        actions = _greedy(version)(self._shown(tastes, candidates, number))
        best = (self._items[candidates] * tastes[:, np.newaxis]).sum(axis=2).max(axis=1)
        return float((best - (self._items[actions] * tastes).sum(axis=1)).mean())

    def _readers(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns tastes [N, 16] and candidates [N, 10]."""
        tastes = random.normal(size=(count, self._items.shape[1]))
        tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
        drawn = [random.random((min(ROWS, count - i), len(self._items))) for i in range(0, count, ROWS)]
        return tastes, np.concatenate([np.sort(np.argsort(each, axis=1)[:, : self._CANDIDATES]) for each in drawn])

    def _rewards(self, random: np.random.Generator, tastes: np.ndarray, actions: np.ndarray) -> list[float]:
        noise = 0.1 * random.normal(size=len(tastes))
        return ((self._items[actions] * tastes).sum(axis=1) + noise).tolist()

    def _shown(self, tastes: np.ndarray, candidates: np.ndarray, number: int) -> dict[str, np.ndarray]:
        mask = np.zeros((len(tastes), len(self._items)), np.int8)
        np.put_along_axis(mask, candidates, 1, axis=1)
        user = recommender.turned(tastes, self._DRIFT * (number - 1)).astype(np.float32)
        return {f'{_OBSERVATION}user': user, f'{_OBSERVATION}candidates': mask}


class Inlining:
    """A compiler asks for each call of a program whether to inline it; functions grow from round to round.

    A program that has grown by more than a tenth is compiled without inlining, which counts as that tenth: so what
    a session can lose is known. Half of the decisions of the system before inline what is small, the others are random.
    """

    training, steps, margin = 'awac_inlining', 2, 2.0  # percent of the size
    bindings = (f'inlining.make.num_calls = {steps}', 'train.StopConditions.num_train_steps = 500')
    columns = (
        "episode = 'arm'\nreturn_range = [-10, 100]\naction = {kind = 'integer', high = 1}\n\n[observation]\n"
        + ''.join(
            f"{name} = {{column = 'observation_{name}', kind = 'integer', low = -1_000_000, high = 1_000_000}}\n"
            for name in inlining.FEATURES
        )
    )
    _SIZE, _DRIFT, _WORST = 2.5, 0.15, -10.0  # the mean logarithm of a size, in each round more; percent of the size
    _SMALL, _RANDOM = 10, 0.5  # instructions of a function that the system before inlines; its share of random actions

    def before(self, random: np.random.Generator, sessions: int) -> Iterator[Logged]:
        """See `World`."""
        for number in range(sessions):
            program, observation = self._program(random.integers(1 << 31), 1)
            for step in range(self.steps):
                likely = int(observation['cost_estimate'] < self._SMALL)
                action = likely if random.random() >= self._RANDOM else int(random.integers(2))
                probability = 1 - self._RANDOM / 2 if action == likely else self._RANDOM / 2
                line = {'id': f'before-{number}-{step}', 'arm': f'before-{number}', 'action': action}
                line |= {f'{_OBSERVATION}{name}': int(value) for name, value in observation.items()}
                observation, saved, *_ = program.step(action)
                yield Logged(line | {'probability': probability}, self._reward(saved))

    def decide(self, random: np.random.Generator, number: int, name: str, ask: Ask) -> list[tuple[str, float]]:
        """See `World`: a request for each call, of all programs at the same time."""
        programs = [self._program(random.integers(1 << 31), number) for _ in range(ROWS)]
        observations, rewards = [observation for _, observation in programs], np.zeros(ROWS)
        for step in range(self.steps):
            requests = [
                Request(f'{name}-{i}-{step}', _batch([each]), f'{name}-{i}') for i, each in enumerate(observations)
            ]
            for i, action in enumerate(ask(requests)):
                observations[i], rewards[i], *_ = programs[i][0].step(int(action[0]))
        return [(f'{name}-{i}-{self.steps - 1}', self._reward(saved)) for i, saved in enumerate(rewards.tolist())]

    def regret(self, version: pathlib.Path, number: int) -> float:
        """See `World`: the best is found by trying all."""
        seeds, greedy = np.random.default_rng(12345 + number).integers(1 << 31, size=NUM_JUDGED), _greedy(version)
        programs = [self._program(seed, number) for seed in seeds]
        observations, saved = [observation for _, observation in programs], np.zeros(NUM_JUDGED)
        for _ in range(self.steps):
            for i, action in enumerate(greedy(_batch(observations))):
                observations[i], saved[i], *_ = programs[i][0].step(int(action))
        best = np.full(NUM_JUDGED, self._WORST)
        for actions in itertools.product((0, 1), repeat=self.steps):
            for i, seed in enumerate(seeds):
                program, _ = self._program(seed, number)
                best[i] = max(best[i], [program.step(action)[1] for action in actions][-1])
        return float((best - np.maximum(saved, self._WORST)).mean())

    def _program(self, seed: int, number: int) -> tuple[inlining.Inlining, dict[str, np.ndarray]]:
        """Returns a program of a round, and its first call."""
        program = inlining.Inlining(6, self.steps, self._SIZE + self._DRIFT * (number - 1))
        return program, program.reset(seed=int(seed))[0]

    def _reward(self, saved: float) -> float:
        return max(float(saved), self._WORST)


def _batch(observations: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {f'{_OBSERVATION}{name}': np.stack([each[name] for each in observations]) for name in observations[0]}


def _greedy(version: pathlib.Path) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Returns the actions of an exported policy."""
    ask = tf.saved_model.load(str(version)).signatures['serving_default']
    return lambda inputs: ask(**{name: tf.constant(value) for name, value in inputs.items()})['action'].numpy()
