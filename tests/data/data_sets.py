"""Episodes in files, made by real environments."""

import contextlib

import numpy as np
import tensorflow as tf

from tests import fakes
from tflearn.actors.actor import Actor
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
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


def write_together(source, directory):
    """Writes the episodes of a data set again, many in a record, as an import does."""
    episodes = [list(each.values()) for each in EpisodeReader(Dataset([str(source)])).episodes()]
    ends = np.cumsum([len(leaves[0]) for leaves in episodes])
    writer = EpisodeWriter(directory, columns.read_specs(source), columns.read_columns(source))
    with contextlib.closing(writer):
        joined = [np.concatenate(leaves) for leaves in zip(*episodes, strict=True)]
        writer.write_records(writer.encoder.encode_together(joined, np.r_[0, ends[:-1]], ends))


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
