"""A process with replay servers, whose streams are filled as lines on its standard input say."""

import argparse
import json
import sys

import numpy as np
import reverb
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.core.experience import BatchItems, Experience, Slicing, Uniform
from tflearn.replay.chunks import ID_BYTES, chunk_rows
from tflearn.replay.reverb import library
from tflearn.replay.storage import STREAM, Storage

_MAX_SIZE = 100_000
_MAX_BYTES = 200_000_000  # of a full replay with images
_FLUSH_CHUNKS = 20


def storage(chunk_steps: int, with_images: bool = False) -> Storage:
    """Returns the layout of CartPole's rows, or of rows with images. A chunk begins `chunk_steps` sequences."""
    scalar = {name: tf.TensorSpec((), dtype, name) for name, dtype in _SCALARS.items()}
    observation = tf.TensorSpec((4,), tf.float32, 'observation')
    if with_images:
        observation = tf.TensorSpec((84, 84, 4), tf.uint8, 'observation')
    spec = trajectory.Trajectory(observation=observation, policy_info=(), **scalar)
    max_size = _MAX_BYTES // 29_000 if with_images else _MAX_SIZE
    replay = Uniform(max_size=max_size, min_size=1, samples_per_insert=None, sampling='learner')
    return Storage(Experience(Slicing(sequence_length=2), replay, BatchItems(1), chunk_steps=chunk_steps), spec)


_SCALARS = {
    'step_type': tf.int32,
    'action': tf.int64,
    'next_step_type': tf.int32,
    'reward': tf.float32,
    'discount': tf.float32,
}


def main() -> None:
    """Serves until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--chunk_steps', type=int, required=True)
    parser.add_argument('--ports', required=True, help='JSON')
    options = parser.parse_args()
    layout = storage(options.chunk_steps)
    ports, servers = json.loads(options.ports), []
    for port in ports:
        stream = reverb.Table.queue(STREAM, 1_000_000, signature=layout.signature)
        servers.append(reverb.Server([library.make_table(layout.make_tables()[0]), stream], port))
    print('serving', flush=True)
    num_written = 0
    for line in sys.stdin:
        num_shards, num_chunks = map(int, line.split())
        for i, port in enumerate(ports[:num_shards]):
            own = len(range(i, num_chunks, num_shards))
            _fill(port, layout, num_written, own)
            num_written += own
        print('filled', flush=True)


def _fill(port: int, layout: Storage, first_id: int, num_chunks: int) -> None:
    writer = reverb.Client(f'localhost:{port}').trajectory_writer(num_keep_alive_refs=1, validate_items=False)
    random, num_rows = np.random.default_rng(first_id), layout.chunk_shape[0]
    for i in range(num_chunks):
        chunk = random.integers(0, 256, layout.item_shape, np.uint8)
        chunk[:ID_BYTES] = np.array([first_id + i], np.int64).view(np.uint8)
        chunk_rows(chunk, layout.layout.num_bytes)[:, 0] = np.arange(num_rows) < layout.num_starts
        writer.append({'chunk': chunk})
        writer.create_item(STREAM, 1.0, {'chunk': writer.history['chunk'][-1]})
        if i % _FLUSH_CHUNKS == 0:
            writer.flush()
    writer.flush()
    writer.close()


if __name__ == '__main__':
    main()
