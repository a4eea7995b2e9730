import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from tflearn.environments.gathering import gatherer

SPACE = spaces.Dict(
    vector=spaces.Box(-1, 1, (3,), np.float32),
    more=spaces.Tuple((spaces.Discrete(4), spaces.Box(0, 255, (2, 2, 1), np.uint8))),
    number=spaces.Box(-1, 1, (), np.float32),
)


def gathered(items):
    batch = create_empty_array(SPACE, len(items))
    gatherer(SPACE, batch, [f'environment {i}' for i in range(len(items))])(items)
    return batch


def test_gathers_as_gymnasium_does():
    SPACE.seed(1)
    items = [SPACE.sample() for _ in range(4)]
    items[1]['vector'] = np.arange(6, dtype=np.float32)[::2]  # not contiguous
    items[2]['vector'] = [0.5, 0.25, 0.125]
    items[2]['more'] = (3, items[2]['more'][1])
    for changed in (items, [{**item, 'vector': np.float64(item['vector'])} for item in items]):
        expected = concatenate(SPACE, changed, create_empty_array(SPACE, 4))
        got = gathered(changed)
        for name in ('vector', 'number'):
            np.testing.assert_array_equal(got[name], expected[name])
        for one, other in zip(got['more'], expected['more'], strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_does_not_fit_is_an_error():
    SPACE.seed(1)
    items = [SPACE.sample() for _ in range(2)]
    for wrong in ({'vector': np.zeros(2, np.float32)}, {'vector': np.zeros((3, 2), np.float32)}, {'number': 'a'}):
        with pytest.raises((ValueError, TypeError)):
            gathered([items[0], {**items[1], **wrong}])
    with pytest.raises((ValueError, TypeError)):  # as many numbers in all
        gathered([{**items[0], 'vector': np.zeros(2, np.float32)}, {**items[1], 'vector': np.zeros(4, np.float32)}])
