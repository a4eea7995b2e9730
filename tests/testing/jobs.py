"""A small run: CartPole, a tiny DQN, a replay server in this process."""

import contextlib
import dataclasses
import functools
import threading

import pytest

from tests import streams
from tflearn.agents import dqn
from tflearn.core import extras
from tflearn.core.access import Access
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.replay_server import replay_server
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import grouped
from tflearn.launch.local import free_port
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.summaries import SummaryOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.replay import backend, reader

SMALL_BINDINGS = [
    'train.StopConditions.num_train_steps = 60',
    'train.Intervals.export_interval_steps = 30',
    'networks.NetworkOptions.fc_layer_params = (8,)',
    'experience.Uniform.min_size = 100',
    'evaluate.evaluate.target_return = None',
    'evaluate.evaluate.num_episodes = 2',
]


class Job:
    """A job in a thread: what it raised, and whether it has ended."""

    def __init__(self, function, stop, **arguments):
        self.stop, self.error = stop, None
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def _run(self, function, arguments):
        try:
            function(**job_arguments(function, {'stop': self.stop, **arguments}))
        except Exception as error:
            self.error = error

    def join(self, timeout_secs=240.0):
        """Waits for the end; raises what the job raised."""
        self._thread.join(timeout_secs)
        assert not self._thread.is_alive(), 'the job did not end'
        if self.error:
            raise self.error

    @property
    def ended(self):
        return not self._thread.is_alive()


def job_arguments(job, settings):
    """Returns a job's arguments; single settings are put into the run and into the groups that have them."""
    settings = {'dir' if name == 'run_dir' else name: value for name, value in settings.items()}
    names = {field.name for field in dataclasses.fields(Run)} & settings.keys()
    settings['run'] = Run(**{name: settings.pop(name) for name in names})
    if job is collect:
        limit = {name: settings.pop(name) for name in ('max_env_steps', 'seed') if name in settings}
        return {**settings, 'options': dataclasses.replace(settings.get('options', CollectOptions()), **limit)}
    if job not in (train, synchronous):
        return settings
    settings.setdefault('exports', ExportOptions(('greedy_policy',)))  # fewer policies take less time to trace
    intervals = {}
    if 'checkpoint_interval_steps' in settings:
        intervals['checkpoint_interval_steps'] = settings.pop('checkpoint_interval_steps')
    argument = 'options' if job is train else 'learner_options'
    if 'summary_interval_steps' in settings or argument not in settings:
        # Steps that are summarized are a program of their own, and tracing it takes half of a small run's time.
        intervals['summaries'] = SummaryOptions(settings.pop('summary_interval_steps', None))
    options = dataclasses.replace(settings.get(argument, LearnerOptions()), **intervals)
    return grouped({**settings, argument: options})


class SmallRun:
    """Starts jobs with the arguments that the jobs of one run share."""

    experience = Experience(replay=Uniform(min_size=50, samples_per_insert=8.0, max_size=2000), batch=BatchItems(8))

    def __init__(self, root):
        self.dir = RunDir(root)
        self.address, self.coordinator = 'localhost:1', Access('localhost:1')
        self._jobs, self._servers = [], []

    def start(self, function, **arguments):
        """Starts a job with the run's arguments; `arguments` take precedence."""
        given = {'run_dir': self.dir, 'coordinator': self.coordinator, 'replay_address': self.address}
        given |= {'connect_timeout_secs': 60.0, **self.factories()}
        stop = arguments.pop('stop', threading.Event())
        job = Job(function, stop, **(given | arguments))
        self._jobs.append(job)
        if function is replay_server:
            self._servers.append(job)
        return job

    def factories(self, units=(8,)):
        return {
            'make_environment': functools.partial(gymnasium_env.make, 'CartPole-v1'),
            'make_agent': functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=units), epsilon=0.2),
            'experience': self.experience,
        }

    def start_replay(self, port=None, **arguments):
        """Starts a replay server, the coordinator too, on free ports and waits until it serves."""
        self.address, self.coordinator = f'localhost:{port or free_port()}', Access(f'localhost:{free_port()}')
        job = self.start(replay_server, **arguments)
        wait_until(
            lambda: self.status('replay_server').get('state') == 'running' or job.ended, 'the replay server', 300
        )
        if job.ended:
            job.join()
        if extras.default_replay_backend() == backend.VALKEY:
            self.address = f'valkey://{self.address}'
        return job

    def status(self, job):
        return read_json(self.dir.status(job)) or {}

    def close(self):
        for job in reversed(self._jobs):
            if job in self._servers:
                streams.wait_until_ended()
            job.stop.set()
            with contextlib.suppress(Exception):
                job.join()


@pytest.fixture
def small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, '_CHECK_CLOSED_MS', 300)  # so that streams end soon after they are closed
    run = SmallRun(tmp_path / 'run')
    yield run
    run.close()
