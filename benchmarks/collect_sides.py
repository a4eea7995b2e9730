"""Ours and TF-Agents' way of collecting CartPole-v1 with the same policy, an MLP of 100-50, into a Reverb server."""

import json
import pathlib
import subprocess
import threading
import time
from typing import Any

import reverb
from tf_agents.agents import tf_agent
from tf_agents.environments import suite_gym
from tf_agents.policies import py_tf_eager_policy
from tf_agents.replay_buffers import reverb_utils
from tf_agents.train import actor as tf_agents_actor

from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.agents import dqn
from tflearn.core.experience import Experience, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import gymnasium_env
from tflearn.networks.networks import NetworkOptions
from tflearn.replay.storage import REPLAY, Storage
from tflearn.replay.writers import ReplayWriter

ENVIRONMENT = 'CartPole-v1'
PEER = 'tf_agents'
PEER_TABLE = 'uniform_table'


def make_agent(specs: EnvironmentSpecs) -> tf_agent.TFAgent:
    """Makes the agent whose collect policy acts on either side."""
    agent = dqn.make_agent(specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(100, 50)))
    agent.initialize()
    return agent


def storage() -> Storage:
    """The tables of our sides. The server draws, so that no learner has to read a stream meanwhile."""
    environment = gymnasium_env.make(ENVIRONMENT, 1, seed=0)
    agent = make_agent(environment.specs)
    environment.close()
    return Storage(Experience(replay=Uniform(sampling='server', max_size=200_000)), agent.collect_data_spec)


class OurSide:
    """Our actor with the job's observers; the environments stepped as `vectorization` names."""

    def __init__(self, vectorization: str, num_environments: int, port: int):
        environment = gymnasium_env.make(ENVIRONMENT, num_environments, seed=0, vectorization=vectorization)
        agent = make_agent(environment.specs)
        address = f'localhost:{port}'
        self._writer = ReplayWriter(
            address, Storage(storage().experience, agent.collect_data_spec), num_environments, threading.Event()
        )
        observers = [EpisodeMetrics(num_environments), lambda trajectory: self._writer(trajectory, 0)]
        self._actor = Actor(environment, agent.collect_policy, observers)
        self._client = reverb.Client(address)

    def sample(self, secs: float) -> float:
        """Collects for so long; returns the steps per second that are in the server."""
        before, start = self._writer.num_sequences, time.perf_counter()
        while time.perf_counter() - start < secs:
            self._actor.run(16)
        self._writer.flush()
        return (self._writer.num_sequences - before) / (time.perf_counter() - start)

    def check(self) -> None:
        """Compares what the server holds with what was written, step by step.

        Raises:
          RuntimeError: if they differ.
        """
        self._writer.flush()
        chunks = self._client.server_info()[REPLAY].current_size
        found: dict[int, int] = {}
        samples = reverb.TrajectoryDataset.from_table_signature(f'{self._client.server_address}', REPLAY, 64)
        for sample in samples.take(40 * chunks):
            found[int(sample.info.key)] = int((sample.data['chunk'].numpy()[:, 0] > 0).sum())
            if len(found) == chunks:
                break
        if sum(found.values()) != self._writer.num_sequences:
            raise RuntimeError(f'got {sum(found.values())} steps in the server; wrote {self._writer.num_sequences}')


class PeerSide:
    """TF-Agents' Actor as its documentation sets it up, without metrics and summaries, which it is faster without."""

    def __init__(self, port: int, directory: pathlib.Path):
        environment = gymnasium_env.make(ENVIRONMENT, 1, seed=0)
        agent = make_agent(environment.specs)
        environment.close()
        self._client = reverb.Client(f'localhost:{port}')
        observer = reverb_utils.ReverbAddTrajectoryObserver(
            self._client, PEER_TABLE, sequence_length=2, stride_length=1
        )
        self._actor = tf_agents_actor.Actor(
            suite_gym.load(ENVIRONMENT),
            py_tf_eager_policy.PyTFEagerPolicy(agent.collect_policy, use_tf_function=True),
            agent.train_step_counter,
            steps_per_run=100,
            observers=[observer],
            summary_dir=str(directory),
        )

    def sample(self, secs: float) -> float:
        """Collects for so long; returns the steps per second that are in the server."""
        before, start = self._num_inserts(), time.perf_counter()
        while time.perf_counter() - start < secs:
            self._actor.run()
        elapsed = time.perf_counter() - start
        return (self._num_inserts() - before) / elapsed

    def _num_inserts(self) -> int:
        return self._client.server_info()[PEER_TABLE].rate_limiter_info.insert_stats.completed


class RllibSide:
    """RLlib's env runner in an environment of its own, see collect_rllib.py."""

    def __init__(self, python: pathlib.Path, num_environments: int, vectorize_mode: str):
        program = pathlib.Path(__file__).with_name('collect_rllib.py')
        self._process = subprocess.Popen(
            [python, program, f'--num_environments={num_environments}', f'--vectorize_mode={vectorize_mode}'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = self._answer()['version']

    def sample(self, secs: float) -> float:
        """Samples for so long; returns steps per second."""
        assert self._process.stdin
        self._process.stdin.write(f'sample {secs}\n')
        self._process.stdin.flush()
        answer = self._answer()
        return answer['steps'] / answer['secs']

    def close(self) -> None:
        """Ends its process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith('{'):
                return json.loads(line)
        raise RuntimeError('RLlib could not start; run benchmarks/collect_rllib.py by hand to see why')
