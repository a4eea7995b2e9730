"""What a run leaves in its directory, read as somebody else would read it."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.end_to_end.programs import CHECKOUT, DEADLINE_SECS
from tflearn.agents import dqn
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir
from tflearn.networks.networks import NetworkOptions

# What each attempt at a run logs. (TensorBoard's files are one per attempt.)
_TOLD = ('logs', 'status', 'summaries', 'commands.txt', 'owners', 'manifests')


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the newest checkpoint is."""

    train_step: int
    policy_version: int
    env_steps: int
    secs: float

    def follows(self, other: 'Progress') -> bool:
        """Whether nothing of it is behind `other`."""
        return all(mine >= its for mine, its in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


def progress(run_dir: RunDir) -> Progress:
    reader = tf.train.load_checkpoint(str(run_dir.checkpoints))
    state, reports = (json.loads(reader.get_tensor(f'{key}/.ATTRIBUTES/py_state')) for key in ('progress', 'reports'))
    train_step = int(reader.get_tensor('train_step/.ATTRIBUTES/VARIABLE_VALUE'))
    env_steps = sum(counts['env_steps'] for counts in reports['counts'].values())
    return Progress(train_step, state['policy_version'], env_steps, state['secs'])


def saved(run_dir: RunDir, but: Sequence[pathlib.Path] = ()) -> dict[str, tuple[int, int]]:
    """What a run has saved, and what an attempt that failed must leave alone: size and time of every file.

    Args:
      run_dir: of the run.
      but: files that do not count.
    """
    files = [path for path in run_dir.root.rglob('*') if path.is_file() and path not in but]
    names = {path: path.relative_to(run_dir.root) for path in files}
    stats = {str(name): path.stat() for path, name in names.items() if name.parts[0] not in _TOLD}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def actions_of_standalone_program(
    policy: pathlib.Path,
    observations: np.ndarray,
    folder: pathlib.Path,
    python: pathlib.Path = pathlib.Path(sys.executable),
) -> dict[str, np.ndarray]:
    """The actions of an exported policy in a process that has neither tflearn nor TF-Agents: actions and served [T, B].

    Args:
      policy: one version.
      observations: [T, B, ...].
      folder: for the files that this takes.
      python: which runs it.
    """
    work = folder / 'standalone'
    (work / 'policy').mkdir(parents=True)
    (work / 'policy' / '2').symlink_to(policy)
    np.savez(work / 'inputs.npz', observation=observations)
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    command = [python, CHECKOUT / 'tests' / 'policies' / 'standalone_program.py', work]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=DEADLINE_SECS)
    return dict(np.load(work / 'outputs.npz'))


def actions_of_the_checkpoint(run_dir: RunDir, layers: tuple[int, ...], observations: np.ndarray) -> np.ndarray:
    """The greedy actions [T, B] of the agent in the newest checkpoint of a run of DQN on CartPole-v1.

    Args:
      run_dir: of the run.
      layers: its fc_layer_params.
      observations: [T, B, 4].
    """
    specs = specs_of(lambda **options: gymnasium_env.make('CartPole-v1', **options))
    agent = dqn.make_agent(specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=layers))
    checkpoint = tf.train.Checkpoint(agent=agent)
    checkpoint.restore(tf.train.latest_checkpoint(str(run_dir.checkpoints))).expect_partial()
    steps = [ts.restart(tf.constant(batch), batch_size=len(batch)) for batch in observations]
    return np.stack([agent.policy.action(step).action.numpy() for step in steps])
