"""A real replay server in this process, on a picked port."""

import contextlib
import dataclasses
import threading

import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tests import streams
from tflearn.replay import reader, reports
from tflearn.replay.server import ReplayServer
from tflearn.replay.storage import REPLAY, Storage

DATA_SPEC = trajectory.Trajectory(
    step_type=tf.TensorSpec((), tf.int32, 'step_type'),
    observation=tf.TensorSpec((2,), tf.float32, 'observation'),
    action=tf.TensorSpec((), tf.int64, 'action'),
    policy_info=(),
    next_step_type=tf.TensorSpec((), tf.int32, 'next_step_type'),
    reward=tf.TensorSpec((), tf.float32, 'reward'),
    discount=tf.TensorSpec((), tf.float32, 'discount'),
)


@dataclasses.dataclass
class Served:
    """A running server, its address and what lies where; `stop` ends those who write."""

    server: ReplayServer
    address: str
    storage: Storage
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def table(self, name=REPLAY):
        return self.server.info()[name]


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Returns a function experience -> Served; all servers are closed at the end."""
    monkeypatch.setattr(reader, '_LOOK_UP_MS', 300)  # streams shall end when they are closed
    with contextlib.ExitStack() as stack:

        def start(experience, port=0, checkpoints=tmp_path / 'replay' / 'checkpoints'):
            storage = Storage(experience, DATA_SPEC)
            server = ReplayServer([*storage.make_tables(), reports.table()], port, checkpoints)
            stack.callback(server.close)
            stack.callback(streams.wait_until_ended)
            served = Served(server, f'localhost:{server.port}', storage)
            stack.callback(served.stop.set)
            return served

        yield start
