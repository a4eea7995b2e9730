"""The train, collect and replay server jobs together, each in a thread of this process."""

import contextlib
import dataclasses
import functools
import re

import pytest
import tensorflow as tf

from tests.testing import lanes, written_summaries
from tflearn.agents import dqn
from tflearn.coordinator.server import CoordinatorServer
from tflearn.core.access import Access
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of
from tflearn.core.waiting import wait_until
from tflearn.environments import pacing
from tflearn.files.run_dir import read_json, write_json
from tflearn.jobs import run_contract
from tflearn.jobs.collect import collect
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Hooks
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import Device, Initial, Intervals, grouped
from tflearn.launch.local import free_port
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import Forecast, StopConditions
from tflearn.learner.summaries import SummaryOptions, SummarySources
from tflearn.net.server_options import ServerOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.policies import updates
from tflearn.transforms import rewards, transformed

FEW = {'steps_per_call': 20, 'checkpoint_interval_steps': 50, 'export_interval_steps': 50, 'publish_interval_steps': 20}


def _result(run):
    return read_json(run.dir.train_result)


def test_runs_to_the_end(small_run, caplog):
    small_run.start_replay()
    # Slow enough for the learner's polls of the replay, one a second.
    slow = functools.partial(
        pacing.make, make_environment=small_run.factories()['make_environment'], unroll_step_interval_secs=0.04
    )
    collector = small_run.start(collect, num_environments=2, make_environment=slow)
    restored = []
    given = {'hooks': Hooks(lambda: restored.append(1), lambda: {'run/config_hash': 'mine'})}
    given['exports'] = ExportOptions(update_interval_steps=30)
    small_run.start(train, num_train_steps=120, **FEW, **given, seed=3, summary_interval_steps=60).join()
    result = _result(small_run)
    assert result['reason'] == 'num_train_steps 120 reached'
    assert result['train_step'] == 120
    assert result['env_steps'] > 0
    assert restored == [1]
    summaries = small_run.dir.summaries('train')
    texts = written_summaries.texts(summaries)
    assert texts.pop('run/networks').startswith('* `agent` (')
    assert texts == {'run/seed': '3', 'run/config_hash': 'mine'}
    assert list(written_summaries.scalars(summaries)['train/replay_size']) == [60, 120]
    assert set(written_summaries.histograms(summaries)['data/policy_lag']) == {60, 120}
    collected = written_summaries.scalars(small_run.dir.summaries('collect'))
    assert {'collect/mean_return', 'collect/mean_discounted_return', 'collect/mean_reward'} <= set(collected)
    assert 0 < max(collected['collect/mean_length']) <= result['env_steps'], 'summaries are by environment steps'
    assert 'train/mean_length' in written_summaries.scalars(summaries)
    for name in ('greedy_policy', 'collect_policy', 'raw_policy'):
        metadata = read_json(small_run.dir.policy(name) / 'latest' / 'metadata.json')
        assert metadata['train_step'] == 120
        assert metadata['env_steps'] > 0 and metadata['mean_return'] > 0
        assert (metadata['config_hash'], metadata['code_revision']) == ('mine', None)
    assert updates.steps(small_run.dir.greedy_policy)[-1] == 120
    assert (small_run.dir.checkpoints / 'ckpt-120.index').exists()
    collector.join()  # by itself: training is over
    assert small_run.status('collect_0')['state'] == 'finished'
    assert small_run.status('train')['policy_version'] == 120 // 20
    assert [line for line in caplog.messages if line.startswith('training on ')], 'the log names the devices'


@lanes.classic
def test_a_blocked_collector_ends_with_training_whose_checkpoint_is_not_for_another_network(small_run, caplog):
    small_run.start_replay()
    # One train step for many environment steps: the collector is blocked from the beginning to the end.
    job = small_run.start(train, num_train_steps=20, **FEW)
    collector = small_run.start(collect, num_environments=2)
    job.join()
    collector.join()
    drawn = re.search(r'got no seed; drew (\d+)', caplog.text)[1]
    assert written_summaries.texts(small_run.dir.summaries('train'))['run/seed'] == drawn
    # A collector that starts after the end waits for training to continue.
    with pytest.raises(TimeoutError, match='weights from a learner that trains'):
        small_run.start(collect, num_environments=2, name='late', connect_timeout_secs=2.0).join()
    small_run.close()
    other = type(small_run)(small_run.dir.root)
    other.dir.train_result.unlink()
    other.dir.replay_checkpoints.parent.rename(small_run.dir.root / 'elsewhere')
    before = {path: path.stat().st_mtime_ns for path in other.dir.root.rglob('ckpt*')}
    wider = other.factories(units=(9,))
    replay = other.start_replay(**wider)
    with pytest.raises(ValueError, match=r'of another agent: .*\[4, 8\] in the checkpoint, float32\[4, 9\] here'):
        other.start(train, num_train_steps=80, **FEW, **wider).join()
    assert {path: path.stat().st_mtime_ns for path in other.dir.root.rglob('ckpt*')} == before
    replay.stop.set()
    replay.join()


@lanes.classic
def test_rejects_jobs_with_different_networks_and_ends_without_data(small_run):
    small_run.start_replay()
    with pytest.raises(ValueError, match='for another network'):
        small_run.start(train, num_train_steps=80, **FEW, **small_run.factories(units=(9,))).join()
    with pytest.raises(ValueError, match='for another network'):
        small_run.start(collect, num_environments=2, **small_run.factories(units=(9,))).join()
    with pytest.raises(TimeoutError, match=r'waiting for data from the replay server .* 0 of 2000 sequences'):
        small_run.start(train, num_train_steps=80, **FEW, timeout_secs=1.0).join()
    assert (small_run.dir.checkpoints / 'ckpt-0.index').exists()
    small_run.start(train, num_train_steps=80, **FEW, max_secs=2.0).join()
    assert _result(small_run)['reason'].startswith('max_secs')


@lanes.classic
def test_learner_continues_with_a_restarted_coordinator_until_a_requested_stop(small_run):
    """A restarted one knows nothing: it gets contract, addresses and weights from who has them. A collector is late."""
    options = ServerOptions('localhost', free_port())
    small_run.coordinator = Access(f'localhost:{options.port}')
    with contextlib.closing(CoordinatorServer(options, 'run')):
        small_run.start_replay(coordinator=small_run.coordinator, serve_coordinator=False)
        small_run.coordinator = Access(f'localhost:{options.port}')
        small_run.start(collect, num_environments=2)
        job = small_run.start(train, num_train_steps=10**6, **FEW)
        wait_until(lambda: small_run.status('train').get('train_step', 0) > 0 or job.ended, 'some train steps', 60)
    with contextlib.closing(CoordinatorServer(options, 'run')) as again:
        small_run.start(collect, num_environments=2, name='late')
        later = small_run.status('train')['train_step'] + 60
        wait_until(lambda: small_run.status('train')['train_step'] > later or job.ended, 'more train steps', 120)
        write_json(small_run.dir.stop_request, {'reason': 'target_return 475 reached'})
        job.join()
        assert _result(small_run)['reason'] == 'target_return 475 reached'
        status = small_run.status('train')
        assert again.status()['policy_version'] > 0 and again.status()['finished']
        assert 0 < status['episodes'] == status['reported_episodes'], 'each counts, and once'
        small_run.close()


def test_times_out_without_a_server(small_run):
    with pytest.raises(TimeoutError, match='waiting for the coordinator at localhost:1, which does not answer'):
        small_run.start(train, num_train_steps=80, connect_timeout_secs=1.0).join()
    with pytest.raises(TimeoutError, match='waiting for the coordinator at localhost:1, which does not answer'):
        small_run.start(collect, connect_timeout_secs=1.0).join()


def test_collector_waits_for_weights_and_can_be_stopped(small_run):
    small_run.start_replay()
    with pytest.raises(TimeoutError, match='weights from a learner'):
        small_run.start(collect, num_environments=2, connect_timeout_secs=1.0).join()
    waiting = small_run.start(collect, num_environments=2)
    wait_until(lambda: 'weights' in small_run.status('collect_0')['state'], 'the wait', 60)
    waiting.stop.set()
    waiting.join()


def test_a_collector_with_another_discount_is_refused(small_run):
    small_run.start_replay()
    factories = small_run.factories()
    other = functools.partial(factories['make_agent'], gamma=0.5)
    for job in (collect, train):
        arguments = {'num_train_steps': 5} if job is train else {}
        with pytest.raises(ValueError, match='for other settings: gamma is 0.99 there, 0.5 here; .* gin file'):
            small_run.start(job, make_agent=other, **arguments).join()
    replay = dataclasses.replace(small_run.experience.replay, samples_per_insert=9.0)
    experience = dataclasses.replace(small_run.experience, replay=replay)
    with pytest.raises(ValueError, match='other settings: Experience.replay.samples_per_insert is 8.0 there, 9.0'):
        small_run.start(collect, experience=experience).join()
    scaled = functools.partial(
        transformed.make_agent, make_agent=factories['make_agent'], transforms=[rewards.Scale(2.0)]
    )
    assert (
        run_contract.agreed_settings(_agent(scaled, factories), small_run.experience)['transforms']
        == 'Scale(factor=2.0)'
    )


def _agent(make_agent, factories):
    return make_agent(specs_of(factories['make_environment']), create_train_step(), factories['experience'])


@lanes.classic
def test_max_env_steps_of_the_collectors_ends_a_run_whose_data_are_used_up(small_run):
    small_run.start_replay()
    training = small_run.start(train, num_train_steps=10**6, **FEW)
    collectors = [small_run.start(collect, name=f'collect_{i}', num_environments=2, max_env_steps=200) for i in (0, 1)]
    for collector in collectors:
        collector.join()
    training.join()
    assert _result(small_run)['reason'] == 'CollectOptions.max_env_steps 200 reached, and the data are used up'
    steps = [small_run.status(f'collect_{i}')['env_steps'] for i in (0, 1)]
    assert 200 <= sum(steps) <= 200 + 2, 'the last batched step of each takes one too many at most'
    status = small_run.status('train')
    assert status['env_steps'] == sum(steps) == _result(small_run)['env_steps'] >= 200
    # Each draws 8 times an item that is inserted beyond the first 50; batches are of 8.
    assert status['train_step'] >= 0.7 * (200 - 50)


def test_finished_run_is_left_alone(small_run):
    write_json(small_run.dir.done, {'reason': 'enough', 'train_step': 7})
    before = sorted(small_run.dir.root.rglob('*'))
    for job in (train, collect):
        arguments = {'num_train_steps': 5} if job is train else {}
        small_run.start(job, **arguments).join()
    assert sorted(small_run.dir.root.rglob('*')) == before


def test_stop_conditions_are_named():
    assert StopConditions(num_train_steps=10) == StopConditions(10, None, None)
    with pytest.raises(ValueError, match=r'got no stop condition; need one of StopConditions.num_train_steps, max_env'):
        StopConditions().check()
    conditions = StopConditions(10, 100, 60.0)
    assert conditions.reached(9, 99, 59.0) is None
    assert [conditions.reached(*values) for values in ((10, 0, 0.0), (0, 100, 0.0), (0, 0, 60.0))] == [
        'num_train_steps 10 reached',
        'max_env_steps 100 reached',
        'max_secs 60 reached',
    ]


def test_the_nearest_end_by_the_newest_rates():
    """Time is left for the condition that is reached first, within a factor of two of what it then takes."""
    now = [0.0]
    forecast = Forecast(StopConditions(10**9, 12_000, 3_600.0), clock=lambda: now[0])
    assert forecast.update(0, 0, 0.0) == {'nearest': 'num_train_steps', 'nearest_share': 0.0, 'secs_left': None}
    for secs in range(1, 121):  # 10/s, then 50/s
        now[0] = float(secs)
        newest = forecast.update(100 * secs, 10 * secs if secs < 60 else 600 + 50 * (secs - 60), float(secs))
    assert newest == {'nearest': 'max_env_steps', 'nearest_share': 0.3, 'secs_left': pytest.approx(8_400 / 50)}
    now[0] += 40.0  # a stall
    assert forecast.update(12_000, 3_600, 120.0)['secs_left'] is None
    now[0] += 1.0
    assert forecast.update(12_100, 3_650, 121.0)['secs_left'] == 8_350 / 50
    conditions = Forecast(StopConditions(max_secs=100.0), clock=lambda: now[0])
    conditions.update(0, 0, 10.0)
    now[0] += 30.0
    assert conditions.update(0, 0, 40.0) == {'nearest': 'max_secs', 'nearest_share': 0.4, 'secs_left': 60.0}


def test_puts_single_settings_into_their_groups():
    given = {'num_train_steps': 9, 'seed': 3, 'steps_per_call': 5, 'exports': None}
    assert grouped(given) == {
        'stop_conditions': StopConditions(9),
        'initial': Initial(seed=3),
        'intervals': Intervals(steps_per_call=5),
        'exports': None,
    }
    with pytest.raises(ValueError, match='got precision and device; need one of them; put precision into Device'):
        grouped({'device': Device('cpu'), 'precision': 'bfloat16'})
    assert grouped({'initial': Initial(), 'seed': None}) == {'initial': Initial()}, 'it says the same'


def test_rejects_a_policy_version_of_the_user(small_run):
    options = LearnerOptions(summaries=SummaryOptions(sources=SummarySources(policy_version=int)))
    with pytest.raises(ValueError, match='got SummarySources.policy_version; need None'):
        small_run.start(train, num_train_steps=9, options=options).join()
    assert not small_run.dir.root.exists()


# Schedules by environment steps, in the jobs train and collect.


@pytest.mark.slow
def test_learner_and_collectors_follow_the_runs_environment_steps(small_run):
    """Each job makes an agent with a schedule of its own."""
    schedule = schedules.linear(1.0, 0.0, 10_000)
    made = []

    def make_agent(specs, train_step, experience):
        made.append(schedules.by_env_steps(schedule))
        return dqn.make_agent(
            specs, train_step, experience, network=NetworkOptions(fc_layer_params=(8,)), epsilon=made[-1]
        )

    def values():
        return [round((1.0 - float(each(tf.constant(0, tf.int64)))) * 10_000) for each in made]

    given = {'make_agent': make_agent}
    small_run.start_replay(**given)
    small_run.start(collect, num_environments=2, **given)
    job = small_run.start(train, num_train_steps=10**6, publish_interval_steps=20, export_interval_steps=10**6, **given)
    wait_until(lambda: job.ended or min(values()[-2:]) > 100, 'both to know some environment steps', 60)
    job.stop.set()
    job.join()
    assert read_json(small_run.dir.status('train'))['env_steps'] >= max(values())


# The settings that the jobs train and synchronous share.


def test_rejects_two_sources_of_first_values():
    with pytest.raises(ValueError, match=r"got Initial.checkpoint='a' and policy='b'; need one of them"):
        Initial(checkpoint='a', policy='b')
