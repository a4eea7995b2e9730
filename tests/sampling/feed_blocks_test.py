"""The layout of a feed's elements: its size, its contract, and what is refused."""

import re

import pytest
import tensorflow as tf

from tests.testing.experiences import experience
from tests.testing.replay import DATA_SPEC
from tflearn.core.experience import Prioritized, Queue
from tflearn.replay.storage import Storage
from tflearn.sampling.feed_blocks import Blocks, from_columns, to_columns


def blocks(kind=None, **settings):
    chosen = experience(kind, **settings) if kind else experience(**settings)
    return Blocks(Storage(chosen, DATA_SPEC))


def test_batches_are_joined_and_come_back_as_they_were():
    layout = blocks(batch_size=3)
    outer = layout.specs[0].shape[:3]
    assert outer == (128, 3, 2) and layout.num_bytes < 1 << 20
    data = tf.nest.map_structure(lambda spec: tf.ones((2, 3, 2, *spec.shape), spec.dtype), DATA_SPEC)
    info = {'policy_version': tf.fill((2, 3, 2), tf.constant(7, tf.int64))}
    columns = to_columns(layout, data, info)
    assert len(columns) == len(layout.specs)
    same, its_info = from_columns(layout, columns)
    tf.nest.assert_same_structure(same, data)
    for one, other in zip(tf.nest.flatten(same), tf.nest.flatten(data), strict=True):
        tf.debugging.assert_equal(one, other)
    assert (its_info['policy_version'].numpy() == 7).all()


def test_large_batches_make_fewer_steps_of_an_element():
    layout = blocks(batch_size=100_000)
    assert layout.num_steps == 1
    assert 1 < blocks(batch_size=2_000).num_steps < 128


def test_a_contract_names_what_differs():
    layout = blocks(batch_size=3)
    contract = layout.contract('a')
    layout.check(contract, 'a feed')
    assert layout.contract('b')['dataset_id'] != contract['dataset_id'], 'another function in the workers'
    with pytest.raises(ValueError, match=re.escape('got a feed at x for other data: its element is')):
        layout.check(blocks(batch_size=4).contract('a'), 'a feed at x')
    with pytest.raises(ValueError, match='its protocol is None; need 1'):
        layout.check({}, 'a feed')


@pytest.mark.parametrize(
    ('kind', 'settings', 'message'),
    [
        (Prioritized, {}, r'got a feed with Experience.replay=Prioritized\(...\)'),
        (Queue, {'versions_ahead': 1}, 'got a feed with Queue.versions_ahead=1'),
    ],
)
def test_refuses_what_needs_an_answer_for_each_item(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        blocks(kind, **settings)
