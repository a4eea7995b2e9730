"""Records are what TensorFlow's own protocol buffers say."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.data import records
from tflearn.data.columns import Column
from tflearn.data.records import Decoder, Encoder

COLUMNS = (
    Column('step_type', 'int32', ()),
    Column('observation.picture', 'uint8', (3, 2)),
    Column('next_step_type', 'int32', ()),
    Column('reward', 'float32', (2,)),
)


def episode(num_rows, seed=0):
    draws = np.random.default_rng(seed)
    step_type = np.ones(num_rows, np.int32)
    step_type[0], step_type[-1] = 0, 2
    picture = draws.integers(0, 256, (num_rows, 3, 2)).astype(np.uint8)
    reward = draws.normal(size=(num_rows, 2)).astype(np.float32)
    return [step_type, picture, np.append(step_type[1:], np.int32(0)), reward]


@pytest.mark.parametrize('num_rows', [2, 21, 22, 127, 128, 5_000])
def test_a_record_is_a_tensorflow_example(num_rows):
    encode, leaves = Encoder(COLUMNS), episode(num_rows)
    (data,), (num_steps,), (encoded_total,), _ = encode(leaves)
    feature = {
        column.name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[leaf.tobytes()]))
        for column, leaf in zip(COLUMNS, leaves, strict=True)
    }
    total = leaves[-1].astype(np.float64).sum(axis=0)
    feature[records.NUM_STEPS] = tf.train.Feature(int64_list=tf.train.Int64List(value=[num_rows]))
    feature[records.RETURN] = tf.train.Feature(float_list=tf.train.FloatList(value=total))
    wanted = tf.train.Example(features=tf.train.Features(feature=feature))
    assert tf.train.Example.FromString(data) == wanted
    assert len(data) == wanted.ByteSize()
    assert num_steps == num_rows - 1 and encoded_total == pytest.approx(total.sum())
    parsed = tf.io.parse_single_example(
        data, {'observation.picture': tf.io.FixedLenFeature((), tf.string)}
    )  # TensorFlow's own parser, which is not that of protocol buffers
    assert parsed['observation.picture'].numpy() == leaves[1].tobytes()


@pytest.mark.parametrize(
    ('lengths', 'order'),
    [
        ([5, 2, 130, 5], [2, 0, 3, 1]),
        ([3] * 9, range(9)),
        ([3] * 9, [0, 2, 1, 3, 5, 4, 6, 7, 8]),
        ([4, 3, 3] * 8, [0, *range(23, 0, -1)]),
    ],
)
def test_episodes_that_are_encoded_together_have_the_records_of_single_ones(lengths, order):
    encode, lengths, order = Encoder(COLUMNS), np.array(lengths), list(order)
    episodes = [episode(n, i) for i, n in enumerate(lengths)]
    joined = [np.concatenate(leaves) for leaves in zip(*episodes, strict=True)]
    ends = np.cumsum(lengths)
    records_of_all = encode.encode(joined, (ends - lengths)[order], ends[order])
    single = [Encoder(COLUMNS)(episodes[i]) for i in order]
    assert records_of_all == tuple([values for (values,) in part] for part in zip(*single, strict=True))


@pytest.mark.parametrize('lengths', [[3] * 200, [2, 130, 5] * 60, [600, 600]])
def test_short_episodes_share_a_record_with_their_columns_one_after_the_other(lengths):
    episodes = [episode(n, i) for i, n in enumerate(lengths)]
    joined = [np.concatenate(leaves) for leaves in zip(*episodes, strict=True)]
    ends = np.cumsum(lengths)
    data, num_steps, totals, num_episodes = Encoder(COLUMNS).encode_together(joined, ends - lengths, ends)
    assert (sum(num_steps), sum(num_episodes)) == (sum(lengths) - len(lengths), len(lengths))
    assert all(len(each) < 80_000 for each in data) and len(data) < max(3, len(lengths) / 8)
    np.testing.assert_allclose(totals, [leaves[-1].sum(dtype=np.float64) for leaves in episodes])
    features = [tf.train.Example.FromString(each).features.feature for each in data]
    assert [tf.train.Example.FromString(each).ByteSize() for each in data] == [*map(len, data)]
    decoded = Decoder(COLUMNS, [], need_finite=True)(features)
    for leaves, column in zip(joined, COLUMNS, strict=True):
        np.testing.assert_array_equal(decoded[column], leaves)


def test_rejects_episodes_of_other_lengths():
    encode, leaves = Encoder(COLUMNS), episode(10)
    with pytest.raises(ValueError, match='got an episode without steps; need at least one'):
        encode.encode(leaves, np.array([0, 5]), np.array([5, 5]))
    with pytest.raises(ValueError, match=r'got reward of 9 steps; need 10'):
        encode([*leaves[:-1], leaves[-1][1:]])


def test_several_records_are_decoded_as_one_after_the_other():
    encode, decode = Encoder(COLUMNS), Decoder(COLUMNS, [], need_finite=True)
    lengths = (5, 2, 9)
    features = [tf.train.Example.FromString(encode(episode(n, n)).data[0]).features.feature for n in lengths]
    decoded = decode(features)
    for k, column in enumerate(COLUMNS):
        np.testing.assert_array_equal(decoded[column], np.concatenate([episode(n, n)[k] for n in lengths]))


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (lambda leaves: leaves[0].__setitem__(2, 0), 'or are of several episodes'),
        (lambda leaves: leaves[0].__setitem__(2, 2), 'or are of several episodes'),
        (lambda leaves: leaves[0].__setitem__(0, 1), 'do not begin with the first one'),
        (lambda leaves: leaves[0].__setitem__(1, 7), 'got the step types'),
        (lambda leaves: (leaves[0].__setitem__(-1, 1), leaves[2].__setitem__(-1, 1)), 'without an end'),
        (lambda leaves: leaves[3].__setitem__((1, 0), np.nan), 'got reward with numbers that are not finite'),
    ],
)
@pytest.mark.parametrize('number', [0, 1, 2])
def test_one_bad_episode_among_several_is_an_error(spoil, message, number):
    encode, decode = Encoder(COLUMNS), Decoder(COLUMNS, [], need_finite=True)
    episodes = [episode(n) for n in (5, 6, 4)]
    spoil(episodes[number])
    features = [tf.train.Example.FromString(encode(leaves).data[0]).features.feature for leaves in episodes]
    with pytest.raises(ValueError, match=message):
        decode(features)


def test_lengths_that_only_fit_in_sum_are_an_error():
    encode, decode = Encoder(COLUMNS), Decoder(COLUMNS, [], need_finite=True)
    short, long = (tf.train.Example.FromString(encode(episode(n)).data[0]).features.feature for n in (4, 6))
    for features, other in ((short, episode(5)), (long, episode(5))):
        features['observation.picture'].bytes_list.value[0] = other[1].tobytes()
    with pytest.raises(ValueError, match=r'got observation.picture of another number of steps'):
        decode([short, long])
