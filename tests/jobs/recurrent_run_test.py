"""Runs with memory through the jobs: states are stored, exported, evaluated, served and loaded."""

import functools

import numpy as np
import pytest

from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.agents import ppo, r2d2
from tflearn.core.experience import BatchItems, Experience, Iteration, Prioritized, Queue, Slicing
from tflearn.environments.tasks import t_maze
from tflearn.files.run_dir import RunDir
from tflearn.jobs.collect import collect
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.run import Run
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.policy_function import load_policy

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
SLICING = Slicing(sequence_length=9, stride=6, cross_episodes=True, store_policy_state=True)
make_environment = functools.partial(t_maze.make, length=2)
R2D2 = {
    'make_environment': make_environment,
    'make_agent': functools.partial(
        r2d2.make_agent,
        network=NetworkOptions(lstm_size=(4,), fc_layer_params=(8,)),
        loss=r2d2.R2D2Loss(burn_in_steps=2),
    ),
}


def evaluated(run_dir, **arguments):
    """Evaluates a run's last policy on the same episodes each time; returns its evaluation."""
    given = {'num_episodes': 6, 'num_environments': 2, 'seed': 0}
    evaluate(run=Run(run_dir, connect_timeout_secs=10.0), make_environment=make_environment, **given | arguments)
    return EvaluationRecord(run_dir.evaluations).evaluations[-1]


def test_prioritized_r2d2_is_trained_evaluated_and_loaded_with_its_state(small_run):
    """The learner makes priorities of whole sequences, which the server draws by."""
    experience = Experience(SLICING, Prioritized(max_size=100, min_size=4, samples_per_insert=8.0), BatchItems(4))
    small_run.factories = lambda: {**R2D2, 'experience': experience}
    small_run.start_replay()
    collector = small_run.start(collect, num_environments=2)
    small_run.start(train, num_train_steps=20, steps_per_call=10).join()
    collector.join()
    assert evaluated(small_run.dir)['train_step'] == 20
    policy = load_policy(small_run.dir.root)
    walk = [np.float32(now) for now in ([0, 1, 1], [1, 0, 1], [0, 1, 0])]
    first = [policy(now).tolist() for now in walk]
    policy.reset()
    assert [policy(now).tolist() for now in walk] == first


@pytest.mark.slow
def test_ppo_with_memory_through_the_jobs_and_a_server(small_run, tmp_path):
    """The served policy, whose state goes back and forth, has the returns of the loaded one on the same episodes."""
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies

    network = NetworkOptions(fc_layer_params=(8,), lstm_size=(4,))
    replay = Queue(max_size=8, training=Iteration(num_epochs=2, minibatch_steps=16))
    factories = {
        'make_environment': make_environment,
        'make_agent': functools.partial(ppo.make_agent, network=network),
        'experience': Experience(
            Slicing(sequence_length=9, stride=8, cross_episodes=True, store_policy_state=True), replay, BatchItems(4)
        ),
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    collector = small_run.start(collect, num_environments=4)
    small_run.start(train, num_train_steps=12, publish_interval_steps=1).join()
    collector.join()
    loaded = evaluated(small_run.dir)
    assert loaded['train_step'] == 12
    elsewhere = RunDir(tmp_path / 'elsewhere')
    elsewhere.train_result.parent.mkdir(parents=True)
    elsewhere.train_result.write_bytes(small_run.dir.train_result.read_bytes())
    with served_policies.serving(small_run.dir.policies) as (server, _):
        options = EvaluateOptions(follow='served', served_at=f'localhost:{server.port}')
        served = evaluated(elsewhere, options=options)
    assert served['returns'] == loaded['returns']
