import functools
import json

import numpy as np
import pytest

pytest.importorskip('pettingzoo', reason='needs pettingzoo; pip install ".[games]"')

import tflearn
from benchmarks.several_agents import win_or_block
from tests.environments import conformance
from tests.testing import docs_blocks
from tflearn.actors.evaluator import Evaluator
from tflearn.agents import dqn
from tflearn.core.action_mask import ActionMask
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.extensions.games import league, turn_game
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.policies import versions

CONNECT_FOUR = functools.partial(turn_game.make, 'pettingzoo.classic.connect_four_v3')
TIC_TAC_TOE = functools.partial(turn_game.make, 'pettingzoo.classic.tictactoe_v3')
SCRIPTED = functools.partial(turn_game.Scripted, win_or_block)

# PettingZoo's games import pygame.
pytestmark = [
    pytest.mark.filterwarnings('ignore:pkg_resources is deprecated:UserWarning'),
    pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]


class Legal:
    """A policy that takes random legal actions, or what a function of one observation says."""

    def __init__(self, environment, move=None):
        self._mask, self._move = ActionMask(environment.specs, 'action_mask'), move
        self._random = np.random.default_rng(0)

    def initial_state(self, batch_size):
        return ()

    def action(self, time_step, state):
        observation = time_step.observation
        actions = self._mask.sample(observation, self._random)
        for i in np.flatnonzero(observation['action_mask'].any(axis=1)) if self._move else ():
            one = {name: part[i] for name, part in observation.items()}
            actions[i] = self._move(one, self._random)
        return actions, state


def test_each_step_is_the_agents_turn_until_a_game_ends():
    environment = CONNECT_FOUR(num_environments=6, seed=0, opponents={'random': turn_game.random_opponent})
    time_step, policy = environment.reset(), Legal(environment)
    seats, ended = set(), 0
    for _ in range(60):
        stones = time_step.observation['observation'].sum(axis=(1, 2))  # [B, 2]: the agent's, the opponent's
        first, last = time_step.step_type == 0, time_step.step_type == 2
        assert np.isin(stones[:, 1] - stones[:, 0], (0, 1))[~last].all(), 'it is the agent that moves next'
        assert (stones[first, 0] == 0).all()
        seats |= set(stones[first, 1].tolist())
        assert time_step.observation['action_mask'].any(axis=1)[~last].all()
        assert (time_step.reward[~last] == 0).all()
        if last.any():
            score = environment.info['score_against/random'][last]
            assert score.tolist() == ((time_step.reward[last] + 1) / 2).tolist()
            assert (time_step.discount[last] == 0).all()
        ended += last.sum()
        time_step = environment.step(policy.action(time_step, ())[0])
    assert seats == {0, 1}, 'the agent begins in some games'
    assert ended > 6
    environment.close()


def test_scores_are_those_against_each_opponent():
    opponents = {'random': turn_game.random_opponent, 'scripted': SCRIPTED}
    environment = CONNECT_FOUR(num_environments=8, seed=1, opponents=opponents)
    means = Evaluator(environment, 80).run(Legal(environment, win_or_block)).means
    assert means['info_end/score_against/random'] > 0.85
    assert 0.25 < means['info_end/score_against/scripted'] < 0.75
    environment.close()
    alone = CONNECT_FOUR(8, 1, opponents, shares={'random': 1, 'scripted': 0})
    assert 'info_end/score_against/scripted' not in Evaluator(alone, 16).run(Legal(alone)).means
    alone.close()


def test_the_same_seed_gives_the_same_games():
    def rollout(seed):
        environment = TIC_TAC_TOE(num_environments=3, seed=seed, opponents={'random': turn_game.random_opponent})
        time_steps, policy = [environment.reset()], Legal(environment)
        for _ in range(20):
            time_steps.append(environment.step(policy.action(time_steps[-1], ())[0]))
        environment.close()
        return time_steps

    conformance.assert_equal(rollout(3), rollout(3))


def test_a_game_of_the_parallel_api_is_played_in_turn():
    environment = turn_game.make(
        'pettingzoo.classic.rps_v2:parallel_env',
        2,
        0,
        {'rock': functools.partial(turn_game.Scripted, lambda observation, random: 0)},
        kwargs={'max_cycles': 3},
    )
    environment.reset()
    rewards = np.array([environment.step(np.array([1, 2])).reward for _ in range(4)])
    assert rewards.sum(axis=0).tolist() == [3.0, -3.0], 'paper beats rock, scissors lose'
    environment.close()


def test_a_scripted_opponent_sees_one_observation_of_several_parts():
    opponent = turn_game.Scripted(lambda observation, random: observation['cards'][1])
    assert opponent.act(None, {'cards': np.array([[1, 2], [3, 4]])}).tolist() == [2, 4]


def test_a_game_that_fails_begins_again_and_knows_the_progress():
    from pettingzoo.classic.tictactoe import tictactoe

    games = []

    class Failing(tictactoe.raw_env):
        def __init__(self):
            super().__init__()
            games.append(self)
            self.fails = len(games) == 2

        def set_progress(self, train_step, env_steps):
            self.progress = train_step, env_steps

        def step(self, action):
            if self.fails:
                raise RuntimeError('broken')
            super().step(action)

    environment = turn_game.make(Failing, 2, 3, {'random': turn_game.random_opponent})
    time_step, policy = environment.reset(), Legal(environment)
    environment.set_progress(7, 30)
    for _ in range(3):
        time_step = environment.step(policy.action(time_step, ())[0])
    assert environment.num_rebuilt == 1
    assert [game.progress for game in games] == [(7, 30)] * 3
    environment.close()


def test_a_run_plays_against_its_own_versions(tmp_path):
    opponents = {'league': functools.partial(league.League, tmp_path), 'random': turn_game.random_opponent}
    run = tflearn.train(
        make_environment=functools.partial(TIC_TAC_TOE, opponents=opponents),
        make_agent=functools.partial(dqn.make_agent, action_mask='action_mask', gamma=1.0),
        experience=Experience(replay=Uniform(min_size=60, samples_per_insert=8.0), batch=BatchItems(32)),
        root_dir=tmp_path,
        num_train_steps=100,
        num_environments=4,
        num_episodes=20,
        seed=1,
        export_interval_steps=50,
        exports=ExportOptions(('greedy_policy',), keep_last=20),
    )
    metrics = run.evaluations[-1]['metrics']
    assert {'info_end/score_against/league', 'info_end/score_against/random'} <= metrics.keys()
    table = json.loads((tmp_path / 'league.json').read_text())
    assert set(table['versions']) <= {'0', '50', '100'}
    games, total = np.sum(list(table['versions'].values()), axis=0)
    assert games > 20
    assert 0 <= total <= games

    # Another process loads them as evaluations do, and meets those more often that beat it.
    found = versions.versions(run.run_dir.greedy_policy)
    table['versions'] = {str(step): [1000.0, 100.0 if step == 50 else 990.0] for step in found}
    (tmp_path / 'league.json').write_text(json.dumps(table))
    opponent = league.League(tmp_path)
    drawn = [opponent.begin() for _ in range(40)]
    assert drawn.count(50) > 30
    observation = {'observation': np.zeros((3, 3, 3, 2), np.int8), 'action_mask': np.eye(3, 9, 4, dtype=np.int8)}
    assert opponent.act(50, observation).tolist() == [4, 5, 6]


def _page():
    """Returns the names of the page's Python."""
    names = {}
    for block in docs_blocks.of('python'):
        if block.page.name == 'several-agents.md':
            exec(compile(block.text, str(block), 'exec'), names)
    return names


def test_python_of_the_page():
    make = _page()['make_environment']
    opponents = {'scripted': make.keywords['opponents']['scripted']}  # the league would wait for a run
    environment = make(num_environments=2, seed=0, opponents=opponents, shares=None)
    mask = environment.reset().observation['action_mask']
    stones = environment.step(mask.argmax(axis=1)).observation['observation']
    assert stones[:, :, 3, 1].any(axis=1).all(), 'the opponent takes the middle column'
    environment.close()


@pytest.mark.parametrize('function', ['env', 'parallel_env'])
def test_one_game_for_all_copies_is_refused(function):
    from pettingzoo.classic import rps_v2

    one = getattr(rps_v2, function)()
    with pytest.raises(ValueError, match='got the same environment'):
        turn_game.make(lambda: one, 2, 0, {'random': turn_game.random_opponent})


@pytest.mark.slow
def test_the_program_of_the_page_trains_against_its_league(tmp_path):
    small = Experience(replay=Uniform(min_size=40), batch=BatchItems(8))
    with docs_blocks.working_in(tmp_path):
        run = _page()['train'](experience=small, num_train_steps=2, export_interval_steps=2, num_episodes=6)
    assert run.train_step == 2 and 'score_against/league' in str(run.evaluations[-1])


@pytest.mark.parametrize(
    ('game', 'arguments', 'message'),
    [
        ('pettingzoo.classic.connect_four_v3', {'opponents': {}}, 'got the opponents [] with shares=None'),
        ('pettingzoo.classic.connect_four_v3', {'shares': {'other': 1.0}}, "with shares={'other': 1.0}; need one"),
        ('pettingzoo.classic.nothing_v3', {}, 'got name='),
    ],
)
def test_errors_are_one_line(game, arguments, message):
    with pytest.raises(ValueError, match='^got ') as raised:
        turn_game.make(game, 1, 0, **{'opponents': {'random': turn_game.random_opponent}, **arguments})
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)
