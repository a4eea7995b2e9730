"""Inlining for size, a small task like a compiler's: a dict of integers, a yes or no,
and a reward at the end.

The observation is one that LLVM's inliner could have (Trofin et al. 2021, "MLGO: a Machine Learning
Guided Compiler Optimizations Framework", arXiv 2101.04808), with fewer features and of a made-up
program: each episode draws functions of heavy-tailed sizes that call each other, and asks for each
call whether to replace it by the callee's body.

A body is smaller by a share for each constant argument, the call itself goes, and a function
without users goes too. So what a decision saves is known (`reference_action`), but the reward comes
at the end, for all decisions together.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import gymnasium
import numpy as np

from tflearn.core.settings import PositiveInt, Range, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env

FEATURES = (
    'call_argument_setup',
    'callee_basic_block_count',
    'callee_users',
    'caller_basic_block_count',
    'caller_users',
    'callsite_height',
    'constant_args',
    'cost_estimate',
    'edge_count',
    'is_multiple_blocks',
    'node_count',
    'num_loops',
)

_CALL_SIZE, _BLOCK_SIZE = 3, 6  # [instructions]
_CONSTANT_SHARE = 0.15  # of a body, which goes for each constant argument
_MAX_SIZE = 500  # [instructions] of a drawn function
_INT64 = np.iinfo(np.int64)


class _Call(NamedTuple):
    caller: int
    callee: int
    num_arguments: int
    num_constants: int


@checked
def make(
    num_environments: PositiveInt,
    seed: int | None,
    num_functions: Annotated[int, Range(least=2)] = 8,
    num_calls: PositiveInt = 12,
) -> BatchedEnvironment:
    """Makes a batch of inlining tasks.

    Args:
      num_functions: functions of a program.
      num_calls: calls of a program, which is the length of an episode [environment steps].

    Raises:
      ValueError: if a number is below 1, or there are fewer than two functions.
    """
    return vector_env.in_process(lambda: Inlining(num_functions, num_calls), num_environments, seed)


def reference_action(observation: Mapping[str, Any]) -> int:
    """Returns 1 if the call of an observation is smaller inlined, as things are; else 0."""
    size, constants = int(observation['cost_estimate']), int(observation['constant_args'])
    growth = _body(size, constants) - int(observation['call_argument_setup'])
    return int(growth - (size if observation['callee_users'] == 1 else 0) < 0)


class Inlining(gymnasium.Env):
    """Programs whose calls are visited one after the other.

    Observation: a dict of int64 scalars without bounds, `FEATURES`. Sizes are in instructions:
      `cost_estimate` is the
    callee's, `call_argument_setup` that of the call. Action: 1 inlines, 0 does not. Reward: 0, and
    at the end of the episode the part of the program's size that was saved [%]; below 0 if it has
    grown.
    """

    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(_INT64.min, _INT64.max, (), np.int64) for name in FEATURES}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_functions: int, num_calls: int, log_size: float = 3.0):
        """Takes the numbers of functions and calls of a program, and the mean logarithm of a function's size."""
        self._num_functions, self._num_calls, self._log_size = num_functions, num_calls, log_size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """See `gymnasium.Env`. Draws a program."""
        super().reset(seed=seed)
        random, number = self.np_random, self._num_functions
        self._sizes = np.clip(random.lognormal(self._log_size, 1.0, number), 1, _MAX_SIZE).astype(int)
        self._loops = random.poisson(self._sizes / 60.0)
        self._users = np.zeros(number, int)
        self._calls, self._next = [], 0
        for _ in range(self._num_calls):
            caller, callee = sorted(random.choice(number, 2, replace=False))
            arguments = int(random.integers(0, 6))
            self._calls.append(_Call(caller, callee, arguments, int(random.binomial(arguments, 0.4))))
            self._users[callee] += 1
        self._before = self._total()
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """See `gymnasium.Env`."""
        call = self._calls[self._next]
        if action:
            self._sizes[call.caller] += _body(self._sizes[call.callee], call.num_constants) - _setup(call)
            self._users[call.callee] -= 1
            if not self._users[call.callee]:
                self._sizes[call.callee] = 0
        self._next += 1
        ended = self._next == self._num_calls
        saved = 100.0 * (1.0 - self._total() / self._before) if ended else 0.0
        return self._observation(), saved, ended, False, {}

    def _total(self) -> int:
        return int(self._sizes.sum())

    def _observation(self) -> dict[str, np.ndarray]:
        call = self._calls[min(self._next, self._num_calls - 1)]
        sizes, users = self._sizes, self._users
        blocks = 1 + sizes // _BLOCK_SIZE
        features = {
            'call_argument_setup': _setup(call),
            'callee_basic_block_count': blocks[call.callee],
            'callee_users': users[call.callee],
            'caller_basic_block_count': blocks[call.caller],
            'caller_users': users[call.caller],
            'callsite_height': self._num_functions - call.caller,
            'constant_args': call.num_constants,
            'cost_estimate': sizes[call.callee],
            'edge_count': users.sum(),
            'is_multiple_blocks': blocks[call.callee] > 1,
            'node_count': np.count_nonzero(sizes),
            'num_loops': self._loops[call.callee],
        }
        return {name: np.array(value, np.int64) for name, value in features.items()}


def _body(size: int, num_constants: int) -> int:
    """Returns the size of an inlined body [instructions]."""
    return int(size * max(0.0, 1.0 - _CONSTANT_SHARE * num_constants))


def _setup(call: _Call) -> int:
    return _CALL_SIZE + call.num_arguments
