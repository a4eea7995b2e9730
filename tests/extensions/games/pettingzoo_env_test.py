import functools
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from tf_agents.trajectories import policy_step

pytest.importorskip('pettingzoo', reason='needs pettingzoo; pip install ".[games]"')

import tflearn
from tests.environments import conformance
from tests.extensions.games.example_games import Meeting, Shifts
from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.actors.evaluator import Evaluator
from tflearn.agents import dqn, ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing, Uniform
from tflearn.data.reader import Dataset
from tflearn.data.statistics import Statistics
from tflearn.extensions.games import pettingzoo_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.record import Quota, record
from tflearn.jobs.run import Run

# Of PettingZoo's own environments, which import pygame.
pytestmark = [
    pytest.mark.filterwarnings('ignore:pkg_resources is deprecated:UserWarning'),
    pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]
SHIFTS = functools.partial(pettingzoo_env.make, Shifts)


def played(make, num_steps, seed=0, action=1):
    """Returns the time steps and infos of a constant action."""
    environment = make(seed=seed)
    time_steps, infos = [environment.reset()], [{}]
    for _ in range(num_steps):
        time_steps.append(environment.step(np.full(environment.num_environments, action)))
        infos.append(environment.info)
    environment.close()
    return time_steps, infos


def test_conforms():
    def of_rows(num_environments, seed):
        return pettingzoo_env.make(Meeting, num_environments // 3, seed)

    conformance.check(of_rows, num_steps=30, own_seeds=False)


def test_a_row_ends_when_its_agent_leaves_and_begins_when_it_comes():
    time_steps, infos = played(functools.partial(SHIFTS, num_environments=2), 8)
    first = np.stack([time_step.step_type for time_step in time_steps])[:, :3]
    assert first.T.tolist() == [
        [0, 1, 1, 1, 1, 1, 2, 0, 1],  # day
        [0, 1, 2, 0, 0, 1, 2, 0, 1],  # night leaves, is away, and comes back
        [0, 0, 0, 0, 1, 2, 0, 0, 0],  # late
    ]
    rewards = np.stack([time_step.reward for time_step in time_steps])[:, :3].T
    assert rewards.tolist() == (first.T > 0).astype(float).tolist()
    ends = [(time_steps[t].step_type[row], time_steps[t].discount[row]) for t, row in ((6, 0), (2, 1), (5, 2))]
    assert ends == [(2, 0), (2, 0), (2, 1)], 'late is truncated'
    idle = np.stack([info['idle'] for info in infos[1:]])[:, :3]
    assert idle.T.tolist() == [
        [False] * 8,
        [False, False, True, False, False, False, False, False],
        [True, True, False, False, False, True, True, True],
    ]
    for time_step in time_steps:
        observation = time_step.observation
        legal = observation['action_mask'].any(axis=1)
        assert legal[time_step.step_type < 2].all(), 'so that the rows of absent agents have a legal action'
        assert (observation['observation'][:3] == observation['observation'][3:]).all(), 'the copies are alike'


def test_observations_have_the_agents_index():
    (first, *_), _ = played(functools.partial(SHIFTS, num_environments=2, agent_id=True), 1)
    assert first.observation['agent'].tolist() == [0, 1, 2, 0, 1, 2]
    (first, *_), _ = played(functools.partial(pettingzoo_env.make, Meeting, num_environments=1, agent_id=True), 1)
    assert set(first.observation) == {'agent', 'observation'}


def test_returns_are_those_of_agents_and_teams_and_absent_agents_do_not_count():
    teams = {'old': ('day',), 'new': ('night', 'late')}
    environment = SHIFTS(num_environments=2, seed=0, teams=teams)
    metrics = EpisodeMetrics(6, 100, read_info=lambda: environment.info)
    actor = Actor(environment, Constant(1), [metrics])
    actor.run(14)  # two games
    assert actor.env_steps == metrics.env_steps == 2 * 2 * (6 + 4 + 2)
    assert (metrics.episodes, metrics.dropped_episodes) == (2 * 2 * 4, 0)
    means = metrics.means()
    assert {name: means[f'mean_info_end/{name}'] for name in ('agent_return/day', 'agent_return/night')} == {
        'agent_return/day': 6.0,
        'agent_return/night': 2.0,
    }
    assert (means['mean_info_end/team_return/old'], means['mean_info_end/team_return/new']) == (6.0, 6.0)
    found = Evaluator(environment, 6).run(Constant(1)).means
    assert (found['return'], found['info_end/team_return/new']) == ((6 + 2 + 2) / 3, 6.0)


def test_recorded_episodes_are_those_of_agents(tmp_path):
    given = {'make_environment': SHIFTS, 'num_environments': 1, 'policy': 'random', 'output': str(tmp_path / 'data')}
    record(run=Run(RunDir(tmp_path / 'run')), quota=Quota(num_episodes=6), **given)
    lengths = Statistics(Dataset([str(tmp_path / 'data')])).lengths
    assert sorted(lengths) == [2, 2, 2, 2, 6, 6]


def test_a_game_that_fails_is_rebuilt_for_all_its_agents():
    class Failing(Shifts):
        made = 0

        def __init__(self):
            type(self).made += 1
            self.number = self.made

        def step(self, actions):
            if self.number == 2 and self._time == 3:
                raise RuntimeError('broken')
            return super().step(actions)

    environment = pettingzoo_env.make(Failing, 2, 0)
    environment.reset()
    types = [environment.step(np.ones(6, np.int64)).step_type.tolist() for _ in range(5)]
    assert types[3] == [1, 0, 1, 0, 0, 0]
    assert types[4] == [1, 1, 2, 1, 1, 0]
    assert environment.num_rebuilt == 2, 'of the agents that were there'


def test_a_pickled_content_goes_on_with_the_same_steps():
    environment = pettingzoo_env.make(Meeting, 2, 3)
    environment.reset()
    environment.step(np.zeros(6, np.int64))
    kept = pickle.dumps(environment.content())
    after = [environment.step(np.full(6, 2)).observation for _ in range(12)]
    other = pettingzoo_env.make(Meeting, 2, 5)
    other.set_content(pickle.loads(kept))
    np.testing.assert_array_equal(after, [other.step(np.full(6, 2)).observation for _ in range(12)])


@pytest.mark.parametrize(
    ('game', 'kwargs', 'rows'),
    [
        ('pettingzoo.classic.rps_v2', {'num_actions': 5, 'max_cycles': 4}, 2),
        (
            'pettingzoo.butterfly.knights_archers_zombies_v11',
            {'max_cycles': 200, 'spawn_delay': 1, 'line_death': True},
            4,
        ),
    ],
)
def test_steps_environments_of_pettingzoo(game, kwargs, rows):
    environment = pettingzoo_env.make(game, 2, 0, kwargs=kwargs)
    metrics = EpisodeMetrics(2 * rows, read_info=lambda: environment.info)
    random = np.random.default_rng(0)
    policy = Constant(lambda: random.integers(environment.specs.action.maximum + 1, size=2 * rows))
    actor = Actor(environment, policy, [metrics])
    actor.run(500 if rows == 4 else 20)
    assert metrics.episodes > 2 * rows
    assert (metrics.dropped_episodes, environment.num_rebuilt) == (0, 0)
    means = metrics.means()
    assert {name for name in means if 'agent_return' in name}
    if rows == 4:
        assert metrics.env_steps < 500 * 2 * rows, 'archers and knights die'
    else:
        assert means['mean_info_end/team_return/all'] == 0.0
    environment.close()


@pytest.mark.parametrize(
    ('make_agent', 'num_train_steps', 'experience'),
    [
        (dqn.make_agent, 200, Experience(replay=Uniform(min_size=40, samples_per_insert=8.0), batch=BatchItems(16))),
        pytest.param(
            ppo.make_agent,
            40,
            Experience(
                slicing=Slicing(sequence_length=5, stride=4, cross_episodes=True),
                replay=Queue(max_size=16, max_policy_lag=2, training=Iteration(2, 8)),
                batch=BatchItems(4),
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_agents_of_one_policy_train_evaluate_and_export(make_agent, num_train_steps, experience, tmp_path):
    run = tflearn.train(
        make_environment=functools.partial(SHIFTS, agent_id=True),
        make_agent=functools.partial(make_agent, action_mask='action_mask'),
        experience=experience,
        root_dir=tmp_path,
        num_train_steps=num_train_steps,
        num_environments=2,
        num_episodes=6,
        seed=1,
        export_interval_steps=num_train_steps,
        exports=ExportOptions(('greedy_policy',)),
    )
    metrics = run.evaluations[-1]['metrics']
    assert {name for name in metrics if 'info_end/agent_return' in name or 'team' in name} >= {
        'info_end/agent_return/day',
        'info_end/team_return/all',
    }
    assert run.best_return > (3.0 if make_agent is dqn.make_agent else 0.0), (
        'of at most 10 / 3: an agent is paid for each step'
    )
    observation = {'observation': np.zeros(2, np.float32), 'action_mask': np.ones(2, np.int64), 'agent': 0}
    assert run.policy(observation) in (0, 1)
    observation['action_mask'] = np.array([1, 0])
    assert run.policy(observation) == 0


class Different(Shifts):
    def action_space(self, agent):
        return spaces.Discrete(2 + (agent == 'late'))


class Staying(Shifts):
    def step(self, actions):
        found = super().step(actions)
        self.agents += ['night'] * (self._time == 2)
        return found


class Unknown(Shifts):
    def reset(self, seed=None, options=None):
        found = super().reset()
        self.agents.append('other')
        return found


@pytest.mark.parametrize(
    ('game', 'arguments', 'message'),
    [
        (Different, {}, 'different actions: day Discrete(2), late Discrete(3); need equal ones'),
        (Staying, {}, 'has ended and is among its agents; need an agent to leave'),
        (Unknown, {}, "got the agent 'other' of environment 0 (shifts); need one of its possible_agents"),
        (Shifts, {'teams': {'one': ('day',)}}, 'need each of the agents day, night, late in one of them'),
        ('no_such_module', {}, 'whose module no_such_module is not there'),
        ('pettingzoo.classic.rps_v2:nothing', {}, 'which has no nothing'),
        ('pettingzoo.classic.tictactoe_v3:env', {}, 'whose agents act in turn (AEC); need its `parallel_env`'),
        (dict, {}, 'got dict without possible_agents'),
    ],
)
def test_errors_are_one_line(game, arguments, message):
    with pytest.raises((ValueError, TypeError), match='^got ') as raised:
        environment = pettingzoo_env.make(game, 1, 0, **arguments)
        environment.reset()
        for _ in range(3):
            environment.step(np.ones(3, np.int64))
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)


class Constant:
    """A policy that answers a number, or what a function returns."""

    def __init__(self, action):
        self._action = action

    def initial_state(self, batch_size):
        return ()

    def action(self, time_step, state):
        actions = self._action() if callable(self._action) else np.full(len(time_step.step_type), self._action)
        return actions, state

    def step(self, time_step, state):
        return policy_step.PolicyStep(*self.action(time_step, state), ())

    def check(self, time_step):
        pass
