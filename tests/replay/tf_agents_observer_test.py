"""A learner reads the same items as TF-Agents' observer writes of the same steps: equal fields, equal counts."""

import collections
import threading

import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec

from tests import fakes
from tests.testing.replay import DATA_SPEC, read_items, write_steps
from tflearn.core.experience import Experience, Slicing, Uniform
from tflearn.replay.writers import ReplayWriter

LENGTHS = (6, 9)


@pytest.mark.parametrize('chunk_steps', [1, 16])
@pytest.mark.parametrize('truncated', [True, False])
@pytest.mark.parametrize('length', [2, 4])
def test_makes_the_same_sequences_as_tf_agents(serve, length, truncated, chunk_steps):
    served = serve(
        Experience(
            slicing=Slicing(sequence_length=length),
            replay=Uniform(min_size=1, sampling='server'),
            chunk_steps=chunk_steps,
        )
    )
    writer = ReplayWriter(served.address, served.storage, len(LENGTHS), threading.Event())
    steps = []

    def record(trajectory, version):
        steps.append(trajectory)
        writer(trajectory, version)

    record.flush = writer.flush
    write_steps(record, fakes.CheckedEnvironment(LENGTHS, truncated=truncated), 70)
    ours, theirs = _count(trajectory for trajectory, _ in read_items(served)), _count(_peer_items(steps, length))
    extra = ours - theirs
    assert not theirs - ours, 'an item of TF-Agents that we do not have'
    # After termination our last steps begin items too, padded with the boundary row; TF-Agents leaves them out.
    assert bool(extra) == (length > 2 and not truncated)
    for item in extra:
        step_types, discounts = (np.frombuffer(item[i], dtype) for i, dtype in ((0, np.int32), (5, np.float32)))
        assert (step_types[-2:] == 2).all()
        assert (discounts == 0).any(), 'no value may be bootstrapped from a repeated row'


def _count(items):
    """Counts items by all their fields, bit for bit."""
    return collections.Counter(tuple(np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(item)) for item in items)


def _peer_items(steps, length):
    """Returns the items that TF-Agents' observers write, one observer for each environment."""
    signature = tensor_spec.add_outer_dim(DATA_SPEC, length)
    server = reverb.Server([reverb.Table.queue('peer', 10_000, signature=signature)])
    client = reverb.Client(f'localhost:{server.port}')
    for i in range(len(LENGTHS)):
        observer = reverb_utils.ReverbAddTrajectoryObserver(client, 'peer', sequence_length=length)
        for step in steps:
            observer(tf.nest.map_structure(lambda column, i=i: column[i], step))
        observer.close()
    size = client.server_info()['peer'].current_size
    samples = reverb.TrajectoryDataset.from_table_signature(f'localhost:{server.port}', 'peer', 10, max_samples=size)
    items = [sample.data for sample in samples]
    server.stop()
    return items
