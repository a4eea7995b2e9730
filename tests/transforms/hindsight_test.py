import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.testing import small_tasks
from tflearn.actors.actor import Actor
from tflearn.agents import dqn, ppo
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.jobs import initial_agent
from tflearn.networks.networks import NetworkOptions
from tflearn.replay.storage import Storage
from tflearn.sampling.ring_source import LocalReplay
from tflearn.transforms import hindsight, rewards, transformed
from tflearn.transforms.transformed import Pipeline

BITS = 5
MAKE_DQN = functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(4,)))


def make(strategy='future', proportion=1.0, horizon=BITS - 1, **more):
    goals = {'reward': hindsight.sparse_reward(), 'terminated': hindsight.reached(), **more}
    return hindsight.Hindsight(horizon, strategy=strategy, proportion=proportion, **goals)


def slicing(strategy, length=2, horizon=BITS - 1):
    return Slicing(length, history_steps=horizon if strategy == 'episode' else 0, future_steps=horizon)


def collected(settings, num_steps=60, size=512):
    """Returns items [size, ...] that a DQN collected from bit flipping, and the transforms' pipeline maker."""
    environment = small_tasks.make_flips(4, 1, BITS)
    experience = Experience(settings, Uniform(max_size=1000, min_size=1), BatchItems(4))
    transforms = [make('episode' if settings.history_steps else 'future', horizon=settings.future_steps)]
    agent = transformed.make_agent(
        environment.specs, create_train_step(), experience, make_agent=MAKE_DQN, transforms=transforms
    )
    local = LocalReplay(Storage(experience, initial_agent.data_spec(agent, experience)), 4, size)
    rows = []
    Actor(environment, agent.collect_policy, [rows.append, lambda row: local(row, 0)]).run(num_steps)
    batch, _ = local.batch(local.draw(tf.constant(1), tf.constant(1, tf.int64)), tf.constant(0))
    return environment.specs, agent, batch, rows


def episodes(rows):
    """Returns the achieved goals of complete episodes, arrays [steps + 1, bits], each with its number of steps."""
    found = []
    for i in range(len(rows[0].step_type)):
        achieved = []
        for row in rows:
            achieved.append(row.observation['achieved_goal'][i])
            if row.step_type[i] == 2:
                found.append(np.stack(achieved))
                achieved = []
    return found


@pytest.mark.parametrize(('strategy', 'length'), [('future', 2), ('future', 3), ('final', 2), ('episode', 2)])
def test_goals_come_from_the_episode(strategy, length):
    """By the paper's definitions; rewards and discounts are those of the new goal; other columns stay."""
    horizon = BITS + 1 - length
    specs, _, batch, _ = collected(slicing(strategy, length, horizon))
    pipeline = Pipeline([make(strategy, horizon=horizon)], specs, slicing(strategy, length, horizon))
    sequences, _ = pipeline.transform_experience(batch)
    begin = horizon if strategy == 'episode' else 0
    assert sequences.observation['desired_goal'].shape[1:] == (length, BITS)
    for name in ('observation', 'achieved_goal'):
        np.testing.assert_array_equal(
            sequences.observation[name], batch.observation[name][:, begin : begin + length], name
        )
    achieved, step_type = batch.observation['achieved_goal'].numpy(), batch.step_type.numpy()
    goals = sequences.observation['desired_goal'].numpy()
    used = set()
    for i in range(len(goals)):
        assert (goals[i] == goals[i, 0]).all(), 'one goal for all steps'
        lasts = np.flatnonzero(step_type[i] == 2)
        if strategy == 'final' and not lasts.size:  # the episode has not ended yet, in the replay
            np.testing.assert_array_equal(goals[i, 0], batch.observation['desired_goal'][i, 0])
            continue
        end = lasts[0] if lasts.size else len(achieved[i]) - 1
        candidates = {
            'future': range(begin + 1, end + 1),
            'final': [end],
            'episode': range(np.flatnonzero(step_type[i] == 0)[-1] if (step_type[i] == 0).any() else 0, end + 1),
        }[strategy]
        matching = [j for j in candidates if (achieved[i, j] == goals[i, 0]).all()]
        assert matching
        used.add(matching[0] - begin)
        for t in range(length - 1):
            if sequences.next_step_type[i, t] == 0:
                assert sequences.reward[i, t] == 0
                continue
            is_reached = (sequences.observation['achieved_goal'][i, t + 1].numpy() == goals[i, 0]).all()
            assert sequences.reward[i, t] == (0.0 if is_reached else -1.0)
            assert sequences.discount[i, t] == (0.0 if is_reached else 1.0)
    assert used >= {'future': {1, 2, 3, 4}, 'final': {1, 2, 3, 4}, 'episode': {-2, -1, 0, 1, 2}}[strategy]


def test_every_step_of_every_episode_is_drawn():
    """Also an episode's last steps; its boundary row is never the first of a sequence."""
    _, _, batch, rows = collected(slicing('future'), size=2000)
    taken = {
        (row.observation['observation'][i].tobytes(), int(row.action[i]))
        for row in rows[: -2 * BITS]
        for i in range(4)
        if row.step_type[i] != 2
    }
    drawn = {
        (bits.tobytes(), int(action))
        for bits, action in zip(batch.observation['observation'][:, 0].numpy(), batch.action[:, 0].numpy(), strict=True)
    }
    assert taken <= drawn
    assert not (batch.step_type[:, 0] == 2).numpy().any()


def test_the_proportion_is_that_of_new_goals():
    specs, agent, batch, _ = collected(slicing('future'), size=2000)
    for proportion in (0.0, 0.75):
        pipeline = Pipeline([make(proportion=proportion)], specs, slicing('future'))
        sequences, _ = pipeline.transform_experience(batch)
        same = (sequences.observation['desired_goal'] == batch.observation['desired_goal'][:, :2]).numpy().all((1, 2))
        # A new goal may be the wanted one, in the last steps of an episode that reached it.
        assert 1 - proportion - 0.05 <= same.mean() <= 1 - 0.9 * proportion
        if not proportion:
            np.testing.assert_array_equal(sequences.reward, batch.reward[:, :2])
            np.testing.assert_array_equal(sequences.discount, batch.discount[:, :2])
    assert np.isfinite(agent.train(tf.nest.map_structure(lambda leaf: leaf[:4], batch)).loss)


def test_discounts_stay_where_goals_end_no_episode():
    specs, _, batch, _ = collected(slicing('future'))
    pipeline = Pipeline([make(terminated=None), rewards.Shift(1.0)], specs, slicing('future'))
    sequences, _ = pipeline.transform_experience(batch)
    np.testing.assert_array_equal(sequences.discount, batch.discount[:, :2])
    assert set(np.unique(sequences.reward[:, 0])) == {0.0, 1.0}


def test_distance_decides_whether_a_goal_is_reached():
    achieved, desired = tf.constant([[0.0, 3.0], [1.0, 1.0]]), tf.constant([[0.0, 3.5], [1.0, 1.6]])
    np.testing.assert_array_equal(hindsight.sparse_reward(0.5)(achieved, desired), [0.0, -1.0])
    np.testing.assert_array_equal(hindsight.reached()(achieved, achieved), True)


OBSERVATION = small_tasks.make_flips(1, 0, BITS).specs.observation
OTHER = {**OBSERVATION, 'achieved_goal': tf.TensorSpec((2,), tf.float32, 'achieved_goal')}


@pytest.mark.parametrize(
    ('transforms', 'observation', 'message'),
    [
        (lambda: [make(horizon=7)], OBSERVATION, 'got Slicing.future_steps=4; need 7, as Hindsight does'),
        (lambda: [make('episode')], OBSERVATION, 'got Slicing.history_steps=0; need 4, as Hindsight does'),
        (lambda: [rewards.Clip(), make()], OBSERVATION, 'got Hindsight after Clip in transforms'),
        (lambda: [make(desired_goal='goal')], OBSERVATION, "got Hindsight of 'goal' and an observation with the parts"),
        (lambda: [make()], OTHER, 'need the same shape and dtype'),
        (lambda: [make(reward=hindsight.reached())], OBSERVATION, r'got bool of shape \(2, 3\) from Hindsight.reward'),
        (lambda: [make(terminated=lambda a, d: a > d)], OBSERVATION, 'from Hindsight.terminated of goals'),
    ],
)
def test_refuses_what_does_not_fit(transforms, observation, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(transforms(), EnvironmentSpecs(observation, fakes.ACTION_SPEC), slicing('future'))


def test_refuses_a_queue():
    specs = EnvironmentSpecs(OBSERVATION, fakes.ACTION_SPEC)
    experience = Experience(slicing('future', 5), Queue(), BatchItems(2))
    with pytest.raises(ValueError, match='got Hindsight with Experience.replay=Queue'):
        transformed.make_agent(specs, create_train_step(), experience, make_agent=ppo.make_agent, transforms=[make()])
