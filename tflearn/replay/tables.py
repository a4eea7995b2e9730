"""Experience and the agent's data -> the replay table and the layout of its rows."""

import reverb
import tensorflow as tf
from tf_agents.typing import types

from tflearn.experience import Experience
from tflearn.replay import rate_limits, rows

REPLAY = 'replay'


def row_layout(collect_data_spec: types.NestedTensorSpec) -> rows.RowLayout:
    """Returns the layout of one step: the agent's trajectory and the version of the policy that acted.

    Args:
      collect_data_spec: the agent's spec of a Trajectory, without outer dimensions.
    """
    version = tf.TensorSpec((), tf.int64, 'policy_version')
    return rows.RowLayout({'policy_version': version, 'trajectory': collect_data_spec})


def make(experience: Experience, layout: rows.RowLayout) -> reverb.Table:
    """Returns the replay table of a run.

    Raises:
      ValueError: if the experience's order is not served yet.
    """
    signature = layout.signature(experience.sequence_length)
    if experience.order == 'queue':
        return reverb.Table.queue(REPLAY, experience.max_size, signature=signature)
    samplers = {
        'uniform': reverb.selectors.Uniform,
        # Priorities come ready-made from the learner, so that their exponent may follow a schedule.
        'prioritized': lambda: reverb.selectors.Prioritized(priority_exponent=1.0),
    }
    return reverb.Table(
        REPLAY,
        sampler=samplers[experience.order](),
        remover=reverb.selectors.Fifo(),
        max_size=experience.max_size,
        max_times_sampled=experience.max_times_sampled,
        rate_limiter=rate_limits.make(experience),
        signature=signature,
    )


def num_bytes(experience: Experience, layout: rows.RowLayout) -> int:
    """Returns a bound of a full table's memory, before compression [bytes]: rows are shared by overlapping items."""
    return experience.max_size * min(experience.stride, experience.sequence_length) * layout.num_bytes
