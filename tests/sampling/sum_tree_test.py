import numpy as np
import pytest

from tflearn.sampling.ring_source import SumTree


@pytest.mark.parametrize('size', [1, 16, 17, 5000])
def test_finds_the_index_that_cumulative_sums_give(size):
    random = np.random.default_rng(size)
    tree, numbers = SumTree(size), np.zeros(size)
    for _ in range(20):
        indices = random.integers(0, size, 300)
        values = random.uniform(size=300) * (random.uniform(size=300) > 0.2)
        tree.set(indices, values)
        for index, value in zip(indices, values, strict=True):
            numbers[index] = value
    np.testing.assert_array_equal(tree.get(np.arange(size)), numbers)
    assert tree.total == pytest.approx(numbers.sum(), rel=1e-12)
    shares = random.uniform(size=2000)
    expected = np.searchsorted(np.cumsum(numbers), shares * numbers.sum(), side='right')
    np.testing.assert_array_equal(tree.find(shares), expected)


def test_finds_no_zero_at_the_ends_of_the_shares():
    tree = SumTree(1000)
    tree.set(np.array([3, 500]), np.array([0.1, 0.3]))
    np.testing.assert_array_equal(tree.find(np.array([0.0, np.nextafter(1.0, 0.0)])), [3, 500])
