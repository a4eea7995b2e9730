import itertools

import numpy as np
import pytest

from tflearn.extensions.tasks import floorplan
from tflearn.extensions.tasks.floorplan import Floorplan

# Ports in the corners 0, 2, 6, 8 of a grid of three rows; two blocks, 4 with wires to both upper ports, 5 to 4 and 8.
WIRES = np.array([[0, 4], [1, 4], [4, 5], [3, 5]])
NETLIST = floorplan._Netlist(2, WIRES, np.array([1.0, 1.0, 2.0, 1.0]))


def _play(environment, act, seed=None):
    """Returns the return of an episode and its observations, the last included."""
    observation, _ = environment.reset(seed=seed)
    total, seen, ended = 0.0, [observation], False
    while not ended:
        observation, reward, ended, truncated, _ = environment.step(act(observation))
        assert environment.observation_space.contains(observation)
        assert not truncated and (ended or not reward), 'the reward comes at the end'
        total += reward
        seen.append(observation)
    return total, seen


def test_lengths_by_hand():
    environment = Floorplan([NETLIST], 2, 3)
    environment.reset(seed=0)
    environment.step(1)
    *_, ended, _, _ = environment.step(4)
    assert ended
    assert environment._length() == 1 + 1 + 2 * 1 + 2
    # The mean over all pairs of free positions.
    free, lengths = [1, 3, 4, 5, 7], []
    for placed in itertools.permutations(free, 2):
        environment._placed = [0, 2, 6, 8, *placed]
        lengths.append(environment._length())
    assert environment._random_length() == pytest.approx(np.mean(lengths))


def test_observation():
    environment = Floorplan([NETLIST], 3, 3)
    first, _ = environment.reset(seed=0)
    assert first['node_mask'].tolist() == [1] * 6 + [0]
    assert first['mask'].tolist() == [0, 1, 0, 1, 1, 1, 0, 1, 0]
    assert first['edges'].tolist() == WIRES.tolist() and first['edge_weights'].tolist() == [1, 1, 2, 1]
    nodes = first['nodes']
    assert nodes[4].tolist() == [0, 0, 0, 0, 1, 0] and nodes[3].tolist() == [1, 1, 1, 1, 0, 0]
    assert nodes[:, floorplan.WIRES_TO_CURRENT].tolist() == [1, 1, 0, 0, 0, 2, 0]
    second = environment.step(7)[0]
    assert second['nodes'][4].tolist() == [0.5, 1, 1, 0, 0, 2]
    assert second['mask'].tolist() == [0, 1, 0, 1, 1, 1, 0, 0, 0]
    with pytest.raises(ValueError, match='got the position 7, which is taken'):
        environment.step(7)


def test_the_reference_places_where_wires_are_shortest():
    environment = Floorplan([NETLIST], 2, 3)
    total, seen = _play(environment, floorplan.reference_action, seed=0)
    assert len(seen) == 3
    placed = [int(np.flatnonzero(one['mask'] - two['mask'])[0]) for one, two in itertools.pairwise(seen)]
    assert placed == [1, 4]
    assert total == pytest.approx(1 - 6 / environment._random_length())


def test_the_reference_is_much_better_than_random_positions():
    batch = floorplan.make(1, 0)
    spec = batch.specs.observation
    batch.close()
    random = np.random.default_rng(0)
    netlists = [floorplan._draw_netlist(np.random.default_rng(i), 8) for i in range(4)]
    assert len({len(netlist.wires) for netlist in netlists}) > 1
    environment = Floorplan(netlists, 8, 5)
    assert spec['mask'].shape == (25,) and spec['nodes'].shape == (12, 6)
    shown = [environment.reset(seed=seed)[0] for seed in range(20)]
    for seen in shown:
        assert ((seen['edges'] == -1).all(axis=1) == (seen['edge_weights'] == 0)).all()
    assert any((seen['edge_weights'] == 0).any() for seen in shown)
    means = [
        np.mean([_play(environment, act, seed)[0] for seed in range(200)])
        for act in (floorplan.reference_action, lambda seen: int(random.choice(np.flatnonzero(seen['mask']))))
    ]
    assert means[0] > 0.25 and abs(means[1]) < 0.05


def test_netlists_are_the_same_in_all_batches_and_bad_numbers_are_refused():
    batches = [floorplan.make(4, seed, num_netlists=1) for seed in (0, 1)]
    first, second = (batch.reset().observation for batch in batches)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    for batch in batches:
        batch.close()
    with pytest.raises(ValueError, match='got max_blocks=8, grid_size=3; need 12 positions or more'):
        floorplan.make(1, 0, grid_size=3)
