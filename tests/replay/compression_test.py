"""Images on their way to a server of Valkey's, in its memory and in its checkpoints."""

import itertools
import sys

import numpy as np
import pytest
import zstandard

from tests.testing.experiences import experience
from tests.testing.replay import serving
from tflearn.core.experience import Queue
from tflearn.files import compression
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY
from tflearn.replay.valkey import library, server


def test_images_are_compressed_on_their_way_and_in_checkpoints(monkeypatch, tmp_path):
    with serving(tmp_path, backend.VALKEY) as serve:
        _check(serve(experience(Queue, max_size=20, batch_size=2, sequence_length=200, stride=199)), monkeypatch)


def _check(served, monkeypatch):
    shape = served.storage.item_shape
    noise = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    images = [np.full(shape, k, np.uint8) for k in range(3)]
    writer = backend.connect(served.address).writer()
    writer.insert([*images, noise], [(REPLAY,)] * 4, 1.0)
    with monkeypatch.context() as patched:  # a collector of an environment that was made for an older version
        patched.setitem(sys.modules, 'zstandard', None)
        patched.setattr(compression.extras, 'is_missing', lambda module: module == 'zstandard')
        writer.insert(images[:1], [(REPLAY,)], 1.0)
        assert writer.flush(0, 10.0)
        served.server.checkpoint()
        newest = served.server._checkpoints.newest()
        with pytest.raises(ImportError, match='zstandard, which a replay whose writers compress needs'):
            server.stored_items(newest, [])
    with library.connected(served.address, 5.0) as connection:
        stored = connection.call('XRANGE', library.ITEMS, '-', '+')
    sizes = [len(item) for _, (_, item) in stored]
    assert max(sizes[:3]) < noise.size / 50 and sizes[3:] == [noise.size] * 2
    items = [*images, noise, images[0]]
    assert np.array_equal(server.stored_items(newest, []), items)
    read = itertools.takewhile(len, backend.connect(served.address).stream(REPLAY, shape, 2))
    assert np.array_equal([*itertools.chain.from_iterable(read)], items)
    claims_more = zstandard.compress(bytes(1 << 20))
    with pytest.raises(ValueError, match=f'another size than {noise.size} bytes'):
        compression.plain(claims_more, noise.size)
