"""Episodes in files, made by real environments."""

import contextlib

import numpy as np
import tensorflow as tf

from tests import fakes
from tflearn.actors.actor import Actor
from tflearn.data import columns
from tflearn.data.writer import EpisodeRecorder, EpisodeWriter
from tflearn.jobs.record import _Acting

SPEC = columns.data_spec(fakes.CheckedEnvironment().specs)


def write(directory, num_steps=60, environment=None, seed=0, **settings):
    """Writes the episodes of random actions. Returns the rows of all environments: Trajectories [B, ...]."""
    environment, rows = environment or fakes.CheckedEnvironment(), []
    writer = EpisodeWriter(directory, environment.specs, **settings)
    with contextlib.closing(writer):
        recorder = EpisodeRecorder(writer, environment.num_environments)
        policy = _Acting(environment.specs, None, 1.0, seed)
        Actor(environment, policy, [recorder, rows.append]).run(num_steps)
    return rows


def split(rows):
    """Returns the complete episodes in rows: lists of leaves [T, ...], in the order in which they ended."""
    episodes, begins = [], {}
    leaves = [tf.nest.flatten(row) for row in rows]
    for t, row in enumerate(rows):
        for i in range(len(row.step_type)):
            if row.step_type[i] == 0:
                begins[i] = t
            elif row.step_type[i] == 2:
                episodes.append(
                    [np.stack([row[k][i] for row in leaves[begins[i] : t + 1]]) for k in range(len(leaves[0]))]
                )
    return episodes
