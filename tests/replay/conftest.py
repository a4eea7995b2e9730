"""A real replay server in this process, on a picked port."""

import contextlib
import dataclasses

import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.replay import reports, tables
from tflearn.replay.server import ReplayServer

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
    """A running server, its address and the layout of its rows."""

    server: ReplayServer
    address: str
    layout: object

    def table(self):
        return self.server.info()[tables.REPLAY]


@pytest.fixture
def serve(tmp_path):
    """Returns a function experience -> Served; all servers are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(experience, port=0, checkpoints=tmp_path / 'replay' / 'checkpoints'):
            layout = tables.row_layout(DATA_SPEC)
            server = ReplayServer([tables.make(experience, layout), reports.table()], port, checkpoints)
            stack.callback(server.close)
            return Served(server, f'localhost:{server.port}', layout)

        yield start
