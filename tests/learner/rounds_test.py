"""Rounds of sequences of any lengths, which a Python program collects."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.testing import foreign_agents, lanes, written_summaries
from tflearn.agents import dqn, ppo
from tflearn.agents.ppo import PPOLoss
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Reuse
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.files.run_dir import RunDir
from tflearn.learner import rounds
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.learner.triggers import PeriodicAction
from tflearn.networks.networks import NetworkOptions

SPECS = EnvironmentSpecs(
    tf.TensorSpec((2,), tf.float32, 'observation'), tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
)
EXPERIENCE = Experience(replay=Queue(training=Iteration(num_epochs=2, minibatch_steps=8)))
PAIRS = Experience(replay=Queue(), batch=BatchItems(4))


def make_agent(factory, experience, **settings):
    return factory(SPECS, create_train_step(), experience, **settings)


def make_ppo(experience=EXPERIENCE, **loss):
    network = NetworkOptions(fc_layer_params=(4,))
    plain = {'normalize_observations': False, 'normalize_rewards': False, 'loss': PPOLoss(**loss)}
    return make_agent(ppo.make_agent, experience, network=network, **plain)


def episode(agent, length, ended=True, seed=0):
    """Returns a Trajectory [length, ...] of an episode: random observations, reward 1."""
    random = np.random.default_rng(seed)
    types = np.full(length + 1, ts.StepType.MID, np.int32)
    types[0] = ts.StepType.FIRST
    if ended:
        types[-1] = ts.StepType.LAST
    observation = random.random((length, 2), np.float32)
    ones = np.ones(length, np.float32)
    time_step = ts.TimeStep(*map(tf.constant, (types[:-1], 0 * ones, ones, observation)))
    info = agent.collect_policy.action(time_step, agent.collect_policy.get_initial_state(length))
    return trajectory.Trajectory(
        step_type=types[:-1],
        observation=observation,
        action=info.action.numpy(),
        policy_info=tf.nest.map_structure(lambda leaf: leaf.numpy(), info.info),
        next_step_type=types[1:],
        reward=np.ones(length, np.float32),
        discount=(types[1:] != ts.StepType.LAST).astype(np.float32),
    )


def trained_samples(source):
    """Takes the round's batches one by one; returns (samples, weights) of all its steps."""
    found = []
    while source.grant(1):
        found.append(source.batch(source.draw(tf.constant(1, tf.int64), tf.constant(0, tf.int64)), 0))
    return found


def test_trains_on_rounds_of_any_size_and_resumes(tmp_path):
    agent = make_ppo()
    source, calls, hooked = rounds.RoundSource(agent, EXPERIENCE), [], []
    triggers = [PeriodicAction(calls.append, every_steps=1)]
    sizes = {1: [5, 3], 2: [9], 3: [2, 4, 6, 8, 1]}
    collected = []

    def collect(number):
        collected.append(number)
        for length in sizes.get(number, []):
            yield episode(agent, length)

    with Learner(agent, source, RunDir(tmp_path), triggers=triggers) as learner:
        before = [variable.numpy() for variable in agent.collect_policy.variables()]
        done = rounds.train_rounds(learner, source, collect, 2, [hooked.append])
        # Two epochs of as many minibatches of 8 as 8 and 9 steps take.
        assert [each.result.num_steps for each in done] == [2, 4]
        assert [each.num_steps for each in done] == [8, 9]
        assert [each.mean_return for each in done] == [4, 9]
        assert calls == [2, 6], 'the triggers are called after each round'
        assert hooked == done
        traces = learner.num_traces
        done = rounds.train_rounds(learner, source, collect, 9, [hooked.append])
        assert [(each.number, each.num_sequences, each.num_steps) for each in done] == [(3, 5, 21)]
        assert collected == [1, 2, 3, 4], 'the fourth round is empty, which ends training'
        assert learner.num_traces == traces
        after = [variable.numpy() for variable in agent.collect_policy.variables()]
        assert any(np.any(one != other) for one, other in zip(before, after, strict=True))
    scalars = written_summaries.scalars(RunDir(tmp_path).summaries('train'))
    assert scalars['train/round/mean_return'] == {2: 4, 6: 9, 12: pytest.approx(4.2)}

    again = make_ppo()
    source = rounds.RoundSource(again, EXPERIENCE)
    with Learner(again, source, RunDir(tmp_path), options=LearnerOptions(summaries=None)) as learner:
        assert (learner.step, source.num_rounds) == (12, 3)
        (fourth,) = rounds.train_rounds(learner, source, lambda number: [episode(again, 3)], 4, max_train_steps=1)
        assert (fourth.number, fourth.result.num_steps, learner.step) == (4, 1, 13)


def test_returns_are_those_of_complete_episodes():
    """With lambda = gamma = 1 the target of an ended episode's step is its number of steps to the end."""
    agent = make_ppo(gamma=1.0, lambda_=1.0, normalize_advantages=False)
    source = rounds.RoundSource(agent, EXPERIENCE)
    source.begin([episode(agent, 5), episode(agent, 3)])
    batches = trained_samples(source)
    assert len(batches) == 2
    for samples, info in batches:
        assert info['weights'].numpy().tolist() == [1] * 8
        assert sorted(samples.target.numpy().round(3)) == [1, 1, 2, 2, 3, 3, 4, 5]


def test_an_unended_sequence_is_continued_by_the_value_of_its_last_row():
    agent = make_ppo(gamma=1.0, lambda_=1.0, normalize_advantages=False)
    source = rounds.RoundSource(agent, EXPERIENCE)
    sequence = episode(agent, 4, ended=False)
    source.begin([sequence, episode(agent, 7, seed=1)])
    assert source.counts['steps'] == 10
    targets = {
        tuple(row): target
        for samples, _ in trained_samples(source)
        for row, target in zip(samples.observation.numpy(), samples.target.numpy(), strict=True)
    }
    (_, values), _ = agent._network(sequence.observation[None])
    found = [targets[tuple(row)] for row in sequence.observation[:3]]
    np.testing.assert_allclose(found, [3, 2, 1] + values.numpy()[0, 3], atol=1e-5)
    assert tuple(sequence.observation[3]) not in targets


def test_filled_minibatches_have_weights():
    agent = make_ppo()
    source = rounds.RoundSource(agent, EXPERIENCE)
    source.begin([episode(agent, 9)])
    weights = [info['weights'].numpy() for _, info in trained_samples(source)]
    assert np.shape(weights) == (4, 8)
    assert np.sum(weights) == 2 * 9


@lanes.numpy_1
def test_an_agent_of_tf_agents_computes_advantages_of_each_length(tmp_path):
    factory = functools.partial(foreign_agents.ppo, **foreign_agents.FOR_ITERATIONS)
    agent = make_agent(factory, EXPERIENCE)
    source = rounds.RoundSource(agent, EXPERIENCE)
    with Learner(agent, source, RunDir(tmp_path), options=LearnerOptions(summaries=None)) as learner:
        assert float(tf.reduce_max(agent._observation_normalizer._count[0])) < 1e-6, 'nothing was added yet'
        done = rounds.train_round(learner, source, [episode(agent, length) for length in (5, 3, 5)])
        # Three episodes, each with the row after its end.
        assert float(tf.reduce_max(agent._observation_normalizer._count[0])) == pytest.approx(6 + 4 + 6)
        assert (done.num_steps, done.result.num_steps) == (13, 4)
        assert np.isfinite(done.result.loss)


def test_single_steps_of_all_sequences(tmp_path):
    agent = make_agent(foreign_agents.behavioral_cloning, PAIRS)
    source = rounds.RoundSource(agent, PAIRS)
    with Learner(agent, source, RunDir(tmp_path), options=LearnerOptions(summaries=None)) as learner:
        done = rounds.train_round(learner, source, [episode(agent, 5), episode(agent, 4)])
        assert (done.num_steps, done.result.num_steps, source.counts['left_out']) == (9, 2, 1)


def test_refuses_what_does_not_fit():
    agent = make_ppo()
    source = rounds.RoundSource(agent, EXPERIENCE)
    with pytest.raises(RuntimeError, match='got train steps before a round'):
        source.grant(1)
    with pytest.raises(ValueError, match='got a round without sequences'):
        source.begin([])
    good = episode(agent, 4)
    with pytest.raises(ValueError, match=r'got sequence 1 with reward of the shape \(3,\); need \(4,\)'):
        source.begin([good, good._replace(reward=np.ones(3))])
    with pytest.raises(ValueError, match='got sequence 0 of another structure than the _?PPO'):
        source.begin([good._replace(policy_info=())])
    with pytest.raises(ValueError, match='got sequence 0 of 1 rows; need at least 2'):
        source.begin([episode(agent, 1, ended=False)])
    assert source.num_rounds == 0


def test_refuses_settings_that_rounds_do_not_have():
    reuse = Experience(replay=Queue(training=Reuse(times=2)))
    with pytest.raises(ValueError, match='for rounds; need a Queue'):
        rounds.RoundSource(make_agent(foreign_agents.behavioral_cloning, PAIRS), reuse)
    with pytest.raises(ValueError, match='for rounds; need a Queue'):
        rounds.RoundSource(make_agent(dqn.make_agent, Experience()), Experience())
    agent = make_agent(foreign_agents.c51, PAIRS)
    source = rounds.RoundSource(agent, PAIRS)
    with pytest.raises(ValueError, match='need 2 in each, since they are trained on as they are'):
        source.begin([episode(agent, 5)] * 4)
    with pytest.raises(ValueError, match='got a round of 3 sequences; need at least 4'):
        source.begin([episode(agent, 2)] * 3)


@pytest.mark.slow
@pytest.mark.parametrize('jit_compile', [False, pytest.param(True, marks=lanes.compiles)])
def test_two_replicas_share_the_sequences(tmp_path, jit_compile):
    strategy = tf.distribute.MirroredStrategy(tf.config.list_logical_devices('CPU')[:2])
    if strategy.num_replicas_in_sync < 2:
        pytest.skip('needs two logical devices')
    with strategy.scope():
        agent = make_ppo()
    source = rounds.RoundSource(agent, EXPERIENCE, strategy)
    options = LearnerOptions(summaries=None, loop=LoopOptions(jit_compile=jit_compile))
    with Learner(agent, source, RunDir(tmp_path), strategy=strategy, options=options) as learner:
        done = rounds.train_round(learner, source, [episode(agent, length) for length in (5, 3, 2)])
    assert dataclasses.replace(done, collect_secs=0.0).num_steps == 10
    assert done.result.num_steps == 4
