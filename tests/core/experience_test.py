import dataclasses
import pickle

import pytest

from tflearn.core.experience import (
    BatchItems,
    BatchSteps,
    Experience,
    Prioritization,
    Prioritized,
    Queue,
    Reuse,
    Slicing,
    Uniform,
)


def test_defaults_are_valid():
    assert Experience().slicing.sequence_length == 2


@pytest.mark.parametrize(
    ('part', 'change', 'message'),
    [
        (Slicing, {'stride': 2}, 'need stride < sequence_length'),
        (Slicing, {'cross_episodes': True, 'pad_episodes': True}, 'got Slicing.cross_episodes with pad_episodes'),
        (Uniform, {'min_size': 200_000}, 'got Uniform.min_size=200000 > max_size=100000'),
        (Prioritized, {'min_size': 200_000}, 'got Prioritized.min_size=200000 > max_size=100000'),
        (Uniform, {'samples_per_insert': 4.0, 'max_times_sampled': 2}, 'would wait for each other forever'),
        (Uniform, {'sampling': 'learner', 'max_times_sampled': 1}, "need 'server' or 'auto'"),
        (
            Experience,
            {'slicing': Slicing(51, 50), 'batch': BatchSteps(520)},
            'got BatchSteps.per_replica=520 with Slicing.stride=50; need a multiple of it',
        ),
    ],
)
def test_rejects_invalid_values(part, change, message):
    with pytest.raises(ValueError, match=message):
        part(**change)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'slicing': 3}, 'got Experience.slicing=3; need Slicing of tflearn.core.experience'),
        ({'replay': Prioritization()}, 'need Uniform or Prioritized or Queue of tflearn.core.experience'),
        ({'batch': 64}, 'got Experience.batch=64; need BatchItems or BatchSteps of tflearn.core.experience'),
    ],
)
def test_rejects_other_parts(change, message):
    with pytest.raises(TypeError, match=message):
        Experience(**change)


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experience().chunk_steps = 1


def test_can_be_pickled():
    queue = Experience(replay=Queue(training=Reuse(times=2)))
    assert pickle.loads(pickle.dumps(queue)) == queue


def test_prioritized_replay_has_default_settings():
    assert Prioritized().prioritization == Prioritization()


def test_batch_size_can_be_given_in_steps():
    settings = Experience(Slicing(sequence_length=51, stride=50), batch=BatchSteps(500))
    assert settings.per_replica_batch_size == 10
    assert dataclasses.replace(settings, slicing=Slicing(51, 10)).per_replica_batch_size == 50
    assert dataclasses.replace(settings, batch=BatchItems(7)).per_replica_batch_size == 7


def test_only_a_queue_limits_versions():
    assert Experience(replay=Queue(versions_ahead=1)).versions_ahead == 1
    assert Experience().versions_ahead is None
