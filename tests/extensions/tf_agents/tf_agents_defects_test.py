"""The defects of TF-Agents' learners that docs/from-tf-agents.md lists: shown there, and absent here."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.train import interval_trigger
from tf_agents.train import learner as peer
from tf_agents.train import ppo_learner as peer_ppo
from tf_agents.train import ppo_learner_test_utils as test_agents

from tests.testing import ppo_agents, recording_agent
from tflearn.core import strategies
from tflearn.extensions.tf_agents import tf_agents_ppo_learner
from tflearn.extensions.tf_agents.tf_agents_learner import Learner
from tflearn.extensions.tf_agents.tf_agents_ppo_learner import PPOLearner

# Python's warning is about code in TF-Agents and TensorFlow.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]


@pytest.fixture
def build(tmp_path, make_agent, make_dataset_fn):
    """Returns a function (learner class, change of each element, arguments) -> learner."""

    def make(learner_class, change=lambda data, info: (data, info), agent=None, **arguments):
        agent = agent or make_agent(arguments.get('strategy'))
        context = tf.distribute.InputContext(num_replicas_in_sync=agent_replicas(arguments))
        arguments.setdefault('experience_dataset_fn', lambda: make_dataset_fn()(context).map(change))
        return learner_class(str(tmp_path / learner_class.__module__), agent.train_step_counter, agent, **arguments)

    def agent_replicas(arguments):
        strategy = arguments.get('strategy')
        return strategy.num_replicas_in_sync if strategy else 1

    return make


def test_triggers_of_the_caller(build):
    triggers = []
    build(Learner, triggers=triggers)
    build(peer.Learner, triggers=triggers)
    assert triggers == []  # an empty list is replaced; one with a trigger is not
    triggers.append(lambda step: None)
    build(Learner, triggers=triggers)
    assert len(triggers) == 1
    build(peer.Learner, triggers=triggers)
    assert len(triggers) == 2


def test_patched_agent(build, make_agent):
    for learner_class, patched in ((Learner, False), (peer.Learner, True)):
        agent = make_agent()
        train = agent.train
        build(learner_class, agent=agent)
        assert (agent.train != train) == patched


def test_traces(build, make_agent):
    for learner_class, expected in ((Learner, [1, 1, 1]), (peer.Learner, [1, 3, 5])):
        agent, traces = make_agent(), []
        train = agent.train
        agent.train = lambda *args, train=train, traces=traces: (traces.append(1), train(*args))[1]
        learner = build(learner_class, agent=agent)
        counts = [len(traces)]
        for parallel_iterations in (10, 3):
            learner.run(2, parallel_iterations=parallel_iterations)
            counts.append(len(traces))
        assert counts == expected


def test_drifting_triggers():
    fired = []
    trigger = interval_trigger.IntervalTrigger(1000, lambda: fired.append(step))
    for step in range(300, 3900, 300):
        trigger(step)
    assert fired == [1200, 2400, 3600]


def test_no_data(build):
    with pytest.raises(AttributeError, match='_experience_iterator'):
        build(peer.Learner, experience_dataset_fn=None).run()
    with pytest.raises(ValueError, match='need one of them'):
        build(Learner, experience_dataset_fn=None).run()


def test_summary_interval_none(build):
    with pytest.raises(ValueError, match='None'):
        build(peer.Learner, summary_interval=None)
    build(Learner, summary_interval=None).run(1)


def test_without_summaries(build, tmp_path):
    """TF-Agents' Learner divides by the interval if its caller has a summary writer."""
    with tf.summary.create_file_writer(str(tmp_path / 'mine')).as_default():
        with pytest.raises(tf.errors.InvalidArgumentError):
            build(peer.Learner, agent=recording_agent.make(), summary_interval=0).loss()
        build(Learner, agent=recording_agent.make(), summary_interval=0).loss()


def test_direct_sampling(build):
    only_data = {'change': lambda data, info: data, 'direct_sampling': True}
    with pytest.raises(ValueError, match='too many values to unpack'):
        build(peer.Learner, **only_data)
    build(Learner, **only_data).run(1)


def test_keywords(build):
    keywords = {
        'change': lambda data, info: ({'experience': data, 'weights': tf.ones(8)}, info),
        'use_kwargs_in_agent_train': True,
    }
    with pytest.raises((TypeError, ValueError)):
        build(peer.Learner, **keywords)
    build(Learner, **keywords).run(1)


def test_extras(build):
    """An extra metric of TF-Agents' DQN is the loss of each item, [8]; its mean is the loss."""
    summed, mean = build(peer.Learner).run(1), build(Learner).run(1)
    np.testing.assert_allclose(summed.loss, mean.loss, rtol=1e-4)
    np.testing.assert_allclose(summed.extra.td_loss, 8 * mean.extra.td_loss, rtol=1e-4)


def test_extras_of_ppo_on_two_replicas(tmp_path):
    """Losses are the same sums of the replicas' shares; TF-Agents' also adds up the share of clipped ratios."""
    found, strategy = {}, strategies.make('mirrored:2')
    data = lambda: tf.data.Dataset.from_tensors((ppo_agents.trajectory(20), ())).repeat(4)  # noqa: E731
    for module in (peer_ppo, tf_agents_ppo_learner):
        with strategy.scope():
            agent = ppo_agents.make()
        arguments = {'minibatch_size': 10, 'shuffle_buffer_size': 1, 'strategy': strategy}
        directory = str(tmp_path / module.__name__)
        learner = module.PPOLearner(directory, agent.train_step_counter, agent, data, data, 4, **arguments)
        found[module] = tf.nest.map_structure(float, learner.run())
    theirs, ours = found[peer_ppo], found[tf_agents_ppo_learner]
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    expected = theirs.extra._replace(clip_fraction=theirs.extra.clip_fraction / 2)
    np.testing.assert_allclose(ours.extra, expected, rtol=1e-4, atol=1e-6)
    assert ours.extra.clip_fraction > 0


def test_mean_loss_on_two_replicas(build):
    losses = {}
    for learner_class in (peer.Learner, Learner):
        learner = build(learner_class, strategy=strategies.make('mirrored:2'))
        losses[learner_class] = learner.loss(reduce_op=tf.distribute.ReduceOp.MEAN).loss.numpy()
    np.testing.assert_allclose(2 * losses[peer.Learner], losses[Learner], rtol=1e-4)


def test_loss_calls_the_callback(build):
    for learner_class, expected in ((Learner, 0), (peer.Learner, 1)):
        count = tf.Variable(0)
        learner = build(learner_class, after_train_strategy_step_fn=lambda *_, count=count: count.assign_add(1))
        learner.loss()
        assert int(count) == expected


def test_the_end_of_the_data(build, make_dataset_fn):
    seven = lambda: make_dataset_fn(0, 7)(tf.distribute.InputContext())  # noqa: E731
    for learner_class in (Learner, peer.Learner):
        called = []
        learner = build(learner_class, experience_dataset_fn=seven, triggers=[called.append])
        if learner_class is peer.Learner:
            with pytest.raises(tf.errors.OutOfRangeError):
                learner.run(10)
            assert called == []
        else:
            learner.run(10)
            assert called == [7]
        assert learner.train_step_numpy == 7


@pytest.mark.parametrize(('learner_class', 'runs_of_second_run'), [(peer_ppo.PPOLearner, {1, 2}), (PPOLearner, {2})])
def test_what_is_left_over(tmp_path, learner_class, runs_of_second_run):
    """25 steps, 2 epochs, minibatches of 10: 5 of them. TF-Agents' trains on 4 and keeps one for the next run."""
    run = tf.Variable(0, dtype=tf.int64)

    def fresh():
        number = tf.cast(tf.py_function(lambda: run.assign_add(1), (), tf.int64), tf.float32)
        steps = test_agents.create_trajectories(25, 1)
        marked = lambda: steps._replace(observation=tf.fill((1, 25), number))  # noqa: E731
        return tf.data.Dataset.range(1).map(lambda _: (marked(), ()))

    plain = lambda: tf.data.Dataset.from_tensors((test_agents.create_trajectories(25, 1), ()))  # noqa: E731
    tf.config.run_functions_eagerly(True)
    try:
        agent = test_agents.FakePPOAgent()
        learner = learner_class(
            str(tmp_path), agent.train_step_counter, agent, fresh, plain, 1, 2, minibatch_size=10, shuffle_buffer_size=1
        )
        learner.run()
        agent.reset()
        learner.run()
        seen = {int(step) for batch in agent.experiences for step in batch.observation.numpy().ravel()}
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == runs_of_second_run
