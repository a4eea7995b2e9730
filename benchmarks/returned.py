"""What does the check of what environments return cost? Environment steps with it, and without it.

    python benchmarks/returned.py

Without it, observations are written to the batch in the same way, but nothing is looked at: no shape, dtype, key,
reward, flag, info, category, and no number that is not finite. Random actions step the environments, and nothing else
is done: no policy, no replay. So the share of the check is the greatest that it can be. The environments of the
observations of 60 numbers and of images return arrays made in advance, which takes hardly any time; CartPole is
gymnasium's. `collect` has DQN's policy and the episodes' metrics besides, as a collector. CPU time of this process;
sides interleaved, in another order in each round; a ratio is the median of the ratios of the rounds.
"""

import contextlib
import functools
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium import spaces

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import collect_sides, command_line, structured, tables  # noqa: E402
from tflearn.actors.actor import Actor  # noqa: E402
from tflearn.actors.episode_metrics import EpisodeMetrics  # noqa: E402
from tflearn.environments import gathering, gymnasium_env, vector_env  # noqa: E402
from tflearn.environments.vector_env import VectorEnvironment  # noqa: E402

SIDES = ('with', 'without')
Make = Callable[..., VectorEnvironment]


class Images(gymnasium.Env):
    """Images 84x84x4 of bytes, two of which alternate."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        self._images, self._steps = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4), np.uint8), 0
        return self._images[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        self._steps += 1
        return self._images[self._steps % 2], 1.0, False, self._steps == structured.EPISODE_STEPS, {}


def _gatherer(space: spaces.Space, batch: Any, *_: Any) -> gathering.Gather:
    """Writes what `gathering.gatherer` writes."""
    if isinstance(space, spaces.Dict):
        parts = [(key, _gatherer(part, batch[key])) for key, part in space.items()]

        def gather_parts(items: Sequence[Any]) -> None:
            for key, gather in parts:
                gather([item[key] for item in items])

        return gather_parts
    flat, joins = batch.reshape(-1, *batch.shape[2:]), batch.ndim == 2

    def gather(items: Sequence[Any]) -> None:
        if joins:
            flat[:] = np.frombuffer(b''.join(items), batch.dtype)
        else:
            np.concatenate(items, out=flat)

    return gather


@contextlib.contextmanager
def _checks(side: str) -> Iterator[None]:
    """Leaves out the checks at what environments return, unless `side` is with them."""
    if side == 'with':
        yield
        return
    first, second = lambda result, *_: result, lambda _, batch, *__: batch
    plain: dict[str, Any] = {'step_result': first, 'reset_result': first, 'vector_step': first, 'batch_of': second}
    with mock.patch.multiple(gathering, gatherer=_gatherer, **plain):
        yield


def main() -> int:
    """Measures, and prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--secs', type=float, default=0.5, help='of each side in a round, about')
    parser.add_argument('--quick', action='store_true', help='three short rounds')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs = 3, 0.1
    rows = [_row(case, _rates(case, options.rounds, options.secs)) for case in CASES]
    print(tables.table(rows))
    for row in rows:
        micros = 1e6 * (1 - row['ratio_to_peer']) / row['ours']
        print(f'{row["case"]}: the check takes {1 - row["ratio_to_peer"]:.1%} of the time, {micros:.2f} us a step')
    command_line.write(options.json, rows)
    return 0


def _steps(make: Make, num_environments: int, **kwargs: Any) -> tuple[Callable[[int], None], int]:
    """Returns a function that takes a number of steps with random actions."""
    environment = make(num_environments=num_environments, seed=0, **kwargs)
    environment.reset()
    actions = np.random.default_rng(0).integers(0, 2, (64, num_environments))

    def run(num_steps: int) -> None:
        for i in range(num_steps):
            environment.step(actions[i % 64])

    return run, num_environments


def _collect(make: Make, num_environments: int, **kwargs: Any) -> tuple[Callable[[int], Any], int]:
    environment = make(num_environments=num_environments, seed=0, **kwargs)
    tf.keras.utils.set_random_seed(0)  # the same weights on both sides
    policy = collect_sides.make_agent(environment.specs).collect_policy
    return Actor(environment, policy, [EpisodeMetrics(num_environments)]).run, num_environments


_CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')
_NATIVE, _COPIES = (functools.partial(_CARTPOLE, vectorization=kind) for kind in ('native', 'in_process'))
_VECTOR, _DICT, _IMAGES = (
    functools.partial(vector_env.in_process, make_one)
    for make_one in (lambda: structured.Numbers(False), lambda: structured.Numbers(True), Images)
)
CASES: dict[str, Callable[..., tuple[Callable[[int], Any], int]]] = {
    'CartPole, 1 environment': functools.partial(_steps, _COPIES, 1),
    'CartPole, 64 copies': functools.partial(_steps, _COPIES, 64),
    'CartPole, 64 of gymnasium, native': functools.partial(_steps, _NATIVE, 64),
    '60 numbers, 64 copies': functools.partial(_steps, _VECTOR, 64),
    'dict of 20 parts, 64 copies': functools.partial(_steps, _DICT, 64),
    'images 84x84x4, 16 copies': functools.partial(_steps, _IMAGES, 16),
    'collect CartPole, 64 copies': functools.partial(_collect, _COPIES, 64),
    'collect CartPole, 64 of gymnasium, native': functools.partial(_collect, _NATIVE, 64),
    'collect dict of 20 parts, 64 copies': functools.partial(_collect, _DICT, 64),
}


def _rates(case: str, rounds: int, secs: float) -> dict[str, list[float]]:
    """Returns the environment steps per CPU second of each side in each round."""
    runs, order = {}, random.Random(0)
    for side, on_nonfinite in zip(SIDES, ('rebuild', 'keep'), strict=True):
        with _checks(side):
            runs[side], num_environments = CASES[case](on_nonfinite=on_nonfinite)
            runs[side](20)
    start = time.process_time()
    runs['with'](100)
    count = max(1, int(100 * secs / (time.process_time() - start)))
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in order.sample(SIDES, len(SIDES)):
            with _checks(side):
                start = time.process_time()
                runs[side](count)
                rates[side].append(count * num_environments / (time.process_time() - start))
    return rates


def _row(case: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    return {
        'case': case,
        'metric': 'with the check, beside without',
        'ours': statistics.median(rates['with']),
        'peer': statistics.median(rates['without']),
        'limit': None,
        'ratio_to_peer': tables.ratio(rates['with'], rates['without']),
        'ratio_to_limit': None,
        'unit': 'environment steps/CPU s',
        'rounds': len(rates['with']),
    }


if __name__ == '__main__':
    sys.exit(main())
