"""Floorplans, a small task like a chip's: blocks are placed one by one where they are allowed,
for short wires.

The observation is one that Circuit Training could have (Mirhoseini et al. 2021, "A graph placement
methodology for fast chip design", Nature 594): features of the nodes of a graph, a list of its
edges, and a mask of the positions that are free. An episode places all blocks of a netlist on a
grid, and is rewarded at its end.

A return of 0 is that of random positions, on average. `reference_action` puts each block where the
wires to what is placed already are shortest.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env

NUM_PORTS = 4
# The columns of the nodes' features.
X, Y, IS_PLACED, IS_PORT, IS_CURRENT, WIRES_TO_CURRENT = range(6)


class _Netlist(NamedTuple):
    """Ports are the first nodes, then the blocks in the order in which they are placed."""

    num_blocks: int
    wires: np.ndarray  # [E, 2] nodes
    weights: np.ndarray  # [E]


@checked
def make(
    num_environments: PositiveInt,
    seed: int | None,
    num_netlists: PositiveInt = 4,
    max_blocks: PositiveInt = 8,
    grid_size: PositiveInt = 5,
    netlists_seed: int = 0,
) -> BatchedEnvironment:
    """Makes a batch of floorplans.

    Args:
      seed: environment i is seeded with seed + i; None draws the seeds. It decides which netlist an
        episode places.
      num_netlists: the number of netlists, which are the same in all environments.
      max_blocks: the most blocks of a netlist, which has at least half as many; 4 ports are nodes
        too.
      grid_size: rows, and columns, of the grid. The ports are in its corners.
      netlists_seed: draws the netlists.

    Raises:
      ValueError: if a number is below 1, or the blocks do not fit the grid.
    """
    if max_blocks + NUM_PORTS > grid_size**2:
        raise UserValueError(
            f'got max_blocks={max_blocks}, grid_size={grid_size}; need {max_blocks + NUM_PORTS} positions or more for '
            f'blocks and ports; the grid has {grid_size**2}'
        )
    random = np.random.default_rng(netlists_seed)
    netlists = [_draw_netlist(random, max_blocks) for _ in range(num_netlists)]
    make_one = functools.partial(Floorplan, netlists, max_blocks, grid_size)
    return vector_env.in_process(make_one, num_environments, seed)


def reference_action(observation: Mapping[str, Any]) -> int:
    """Returns the legal position with the shortest wires from the current block to the nodes that are placed."""
    legal, nodes = np.asarray(observation['mask']), np.asarray(observation['nodes'])
    size = int(np.sqrt(len(legal)))
    positions = _positions(size) / max(size - 1, 1)
    placed = nodes[nodes[:, IS_PLACED] > 0]
    distances = np.abs(positions[:, np.newaxis] - placed[:, [X, Y]]).sum(axis=2)
    lengths = distances @ placed[:, WIRES_TO_CURRENT]
    return int(np.where(legal, lengths, np.inf).argmin())


class Floorplan(gymnasium.Env):
    """Places the blocks of a netlist, the same number of steps for each of its blocks.

    Observation: a dict of
      nodes: float32 [N, 6]: x, y within [0, 1] (0 if not placed), whether it is placed, a port, the
        current block; the weight of its wires to the current block.
      node_mask: int32 [N]: 1 for the nodes that the netlist has.
      edges: int32 [E, 2]: the nodes of each wire; -1 where there is none.
      edge_weights: float32 [E]: 0 where there is none.
      mask: int32 [positions]: 1 where the current block may be placed.
    Action: a position, row by row. Reward: 0, and at the end 1 - length / mean length of random
      positions, where the
    length of a wire is its weight times the distance along rows and columns.
    """

    def __init__(self, netlists: list[_Netlist], max_blocks: int, grid_size: int):
        """Takes the netlists, the most blocks of one, and the rows of the grid."""
        self._netlists, self._size = netlists, grid_size
        self._positions = _positions(grid_size)
        last = grid_size - 1
        self._ports = np.array([0, last, grid_size * last, grid_size**2 - 1])
        self._num_nodes = NUM_PORTS + max_blocks
        num_wires = max(len(netlist.wires) for netlist in netlists)
        box, binary = gymnasium.spaces.Box, functools.partial(gymnasium.spaces.Box, 0, 1, dtype=np.int32)
        self._spaces: dict[str, Any] = {
            'nodes': box(0.0, np.inf, (self._num_nodes, 6), np.float32),
            'node_mask': binary((self._num_nodes,)),
            'edges': box(-1, self._num_nodes - 1, (num_wires, 2), np.int32),
            'edge_weights': box(0.0, np.inf, (num_wires,), np.float32),
            'mask': binary((grid_size**2,)),
        }
        self.observation_space = gymnasium.spaces.Dict(self._spaces)
        self.action_space = gymnasium.spaces.Discrete(grid_size**2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """See `gymnasium.Env`. Draws one of the netlists."""
        super().reset(seed=seed)
        self._netlist = self._netlists[self.np_random.integers(len(self._netlists))]
        self._placed = [*self._ports]  # the position of each node, in their order
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """See `gymnasium.Env`. Raises ValueError if the position is taken."""
        if action in self._placed:
            raise UserValueError(f'got the position {action}, which is taken; need one that the mask has')
        self._placed.append(int(action))
        ended = len(self._placed) == NUM_PORTS + self._netlist.num_blocks
        reward = 1.0 - self._length() / self._random_length() if ended else 0.0
        return self._observation(), reward, ended, False, {}

    def _length(self) -> float:
        ends = self._positions[np.array(self._placed)][self._netlist.wires]
        return float(np.abs(ends[:, 0] - ends[:, 1]).sum(axis=1) @ self._netlist.weights)

    def _random_length(self) -> float:
        """Returns the mean length of the wires if blocks are at random positions that are free."""
        free = np.delete(self._positions, self._ports, axis=0)
        pairs = np.abs(free[:, np.newaxis] - free).sum(axis=2)
        to_blocks = pairs.sum() / (len(free) * (len(free) - 1))
        to_ports = np.abs(free[:, np.newaxis] - self._positions[self._ports]).sum(axis=2).mean(axis=0)
        first = self._netlist.wires.min(axis=1)
        each = np.where(first < NUM_PORTS, to_ports[np.minimum(first, NUM_PORTS - 1)], to_blocks)
        return float(each @ self._netlist.weights)

    def _observation(self) -> dict[str, np.ndarray]:
        netlist, current = self._netlist, len(self._placed)
        number = NUM_PORTS + netlist.num_blocks
        observation = {name: np.zeros(space.shape, space.dtype) for name, space in self._spaces.items()}
        nodes = observation['nodes']
        nodes[:current, [X, Y]] = self._positions[np.array(self._placed)] / max(self._size - 1, 1)
        nodes[:current, IS_PLACED], nodes[:NUM_PORTS, IS_PORT] = 1.0, 1.0
        if current < number:
            nodes[current, IS_CURRENT] = 1.0
            for one, other in ((0, 1), (1, 0)):
                wires = netlist.wires[:, one] == current
                np.add.at(nodes[:, WIRES_TO_CURRENT], netlist.wires[wires, other], netlist.weights[wires])
        observation['node_mask'][:number] = 1
        count = len(netlist.wires)
        observation['edges'][:] = -1
        observation['edges'][:count], observation['edge_weights'][:count] = netlist.wires, netlist.weights
        observation['mask'][:] = 1
        observation['mask'][self._placed] = 0
        return observation


def _positions(size: int) -> np.ndarray:
    """Returns the positions of a grid, [size * size, 2]: x, y."""
    return np.stack([np.arange(size**2) % size, np.arange(size**2) // size], axis=1).astype(float)


def _draw_netlist(random: np.random.Generator, max_blocks: int) -> _Netlist:
    """Draws a netlist in which each block has one to three wires to earlier nodes."""
    num_blocks = int(random.integers((max_blocks + 1) // 2, max_blocks + 1))
    wires = [
        (int(other), block)
        for block in range(NUM_PORTS, NUM_PORTS + num_blocks)
        for other in random.choice(block, random.integers(1, 4), replace=False)
    ]
    return _Netlist(num_blocks, np.array(wires), random.integers(1, 4, len(wires)).astype(float))
