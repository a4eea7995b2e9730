"""Collect and evaluate act by a served policy; evaluate follows the published weights."""

import functools
import threading

import numpy as np
import pytest

from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train import train
from tflearn.policies import loader, versions

FEW = {'steps_per_call': 20, 'checkpoint_interval_steps': 50, 'export_interval_steps': 40, 'publish_interval_steps': 20}
EPISODES = {'num_episodes': 2, 'num_environments': 2, 'idle_timeout_secs': 60.0, 'seed': 0}


def start_evaluate(run, run_dir=None, **arguments):
    """Starts the evaluate job with its own run directory, to show that it needs no file of the train job."""
    make = functools.partial(gymnasium_env.make, 'CartPole-v1')
    given = {'make_environment': make, 'run_dir': run_dir or run.dir, **EPISODES}
    return run.start(evaluate, **(given | arguments))


def test_evaluate_follows_the_published_weights_and_collect_acts_by_a_served_policy(small_run, tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies

    small_run.start_replay()
    options = ExportOptions(('greedy_policy', 'collect_policy'))
    job = small_run.start(train, num_train_steps=10**6, max_env_steps=200, exports=options, **FEW)
    elsewhere = RunDir(tmp_path / 'elsewhere')
    by_weights = start_evaluate(small_run, elsewhere, options=EvaluateOptions(follow='weights'))
    wait_until(lambda: versions.newest_version(small_run.dir.policy('collect_policy')) is not None, 'an export', 60)
    with served_policies.serving(small_run.dir.policies) as (server, models):
        address = f'localhost:{server.port}'
        over = threading.Event()
        refresher = threading.Thread(target=lambda: [models.refresh() for _ in iter(lambda: over.wait(0.2), True)])
        refresher.start()
        try:
            collector = small_run.start(collect, num_environments=2, options=CollectOptions(served_at=address))
            by_server = start_evaluate(small_run, options=EvaluateOptions(follow='served', served_at=address))
            for ended in (job, collector, by_weights, by_server):
                ended.join()
        finally:
            over.set()
            refresher.join(10)
    result = read_json(small_run.dir.train_result)
    assert result['reason'] == 'max_env_steps 200 reached'
    assert small_run.status('collect_0')['env_steps'] >= result['env_steps'] >= 200
    last = [EvaluationRecord(run_dir.evaluations).evaluations[-1] for run_dir in (small_run.dir, elsewhere)]
    assert [evaluation['train_step'] for evaluation in last] == [result['train_step']] * 2
    done = read_json(elsewhere.done)
    assert done['policy'] == f'policies/evaluated_policy/{result["train_step"]}'
    time_step = gymnasium_env.make('CartPole-v1', 3, seed=0).reset()
    paths = [elsewhere.root / done['policy'], small_run.dir.root / read_json(small_run.dir.done)['policy']]
    actions = [loader.load(path).action(time_step)[0] for path in paths]
    np.testing.assert_array_equal(*actions)
