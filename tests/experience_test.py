import dataclasses

import pytest

from tflearn import experience, types
from tflearn.experience import Experience, Prioritization, Reuse


def test_defaults_are_valid():
    assert Experience().sequence_length == 2


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'sequence_length': 1}, 'sequence_length=1; need at least 2'),
        ({'stride': 0}, 'stride=0'),
        ({'stride': 2}, 'need stride < sequence_length'),
        ({'per_replica_batch_size': 0}, 'per_replica_batch_size=0'),
        ({'stride': 0, 'per_replica_batch_steps': 4}, 'stride=0'),
        ({'per_replica_batch_steps': 0}, 'per_replica_batch_steps=0; need at least 1'),
        ({'min_size': 200_000}, 'min_size=200000 > max_size=100000'),
        ({'samples_per_insert': 0.0}, 'samples_per_insert=0.0; need a number above 0'),
        ({'order': 'random'}, "order='random'; need one of uniform, prioritized, queue"),
        ({'order': 'queue', 'samples_per_insert': 1.0}, 'returns each item once'),
        ({'order': 'queue', 'max_times_sampled': 1}, 'returns each item once'),
        ({'max_policy_lag': 2}, "max_policy_lag, versions_ahead, reuse or iteration with order='uniform'; need order="),
        ({'reuse': Reuse()}, "max_policy_lag, versions_ahead, reuse or iteration with order='uniform'; need order="),
        ({'versions_ahead': 0}, "max_policy_lag, versions_ahead, reuse or iteration with order='uniform'; need order="),
        ({'order': 'queue', 'versions_ahead': -1}, 'got Experience.versions_ahead=-1; need at least 0'),
        ({'order': 'queue', 'max_policy_lag': -1}, 'got Experience.max_policy_lag=-1; need at least 0'),
        (
            {'sequence_length': 51, 'stride': 50, 'per_replica_batch_steps': 520},
            'got Experience.per_replica_batch_steps=520 with stride=50; need a multiple of it',
        ),
    ],
)
def test_rejects_invalid_values(change, message):
    with pytest.raises(ValueError, match=message):
        Experience(**change)


@pytest.mark.parametrize('value', [2.5, True, '2'])
def test_rejects_counts_that_are_not_integers(value):
    with pytest.raises(TypeError, match='need an integer'):
        Experience(sequence_length=value)


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experience().max_size = 1


def test_prioritized_order_has_default_settings():
    assert Experience(order='prioritized').prioritization == Prioritization()
    assert Experience().prioritization is None
    with pytest.raises(ValueError, match="got Experience.prioritization with order='uniform'"):
        Experience(prioritization=Prioritization())


def test_batch_size_can_be_given_in_steps():
    experience = Experience(sequence_length=51, stride=50, per_replica_batch_steps=500)
    assert experience == Experience(sequence_length=51, stride=50, per_replica_batch_size=10)
    assert Experience(per_replica_batch_size=None, per_replica_batch_steps=500).per_replica_batch_size == 500
    assert dataclasses.replace(experience, stride=10).per_replica_batch_size == 50
    assert dataclasses.replace(experience, per_replica_batch_steps=None).per_replica_batch_size == 64
    given = dataclasses.replace(experience, per_replica_batch_size=7, per_replica_batch_steps=None)
    assert dataclasses.replace(given, stride=10).per_replica_batch_size == 7


def test_rejects_batch_size_together_with_batch_steps():
    for values in ((8, 640), (64, 640)):
        with pytest.raises(
            ValueError, match=r'per_replica_batch_size=\d+ and per_replica_batch_steps=640; need one of'
        ):
            Experience(per_replica_batch_size=values[0], per_replica_batch_steps=values[1])
    with pytest.raises(ValueError, match='got Experience.per_replica_batch_size=7 and per_replica_batch_steps=500'):
        dataclasses.replace(Experience(per_replica_batch_steps=500), per_replica_batch_size=7)


def test_protocols_keep_their_old_names():
    for name in ('Agent', 'AgentFactory', 'BatchSource', 'WEIGHTS'):
        assert getattr(experience, name) is getattr(types, name)
    assert not hasattr(experience, 'Batch')
