"""Several policies of one game: what an environment with partners does, and runs of all of them by the program."""

import functools
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip('pettingzoo', reason='needs pettingzoo; pip install ".[games]"')

import tflearn
from tests.extensions.games.example_games import Shifts, Talk
from tests.testing import forks
from tflearn.agents import dqn
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.extensions.experiments import policies, runs
from tflearn.extensions.games import pettingzoo_env
from tflearn.extensions.games.turn_game import Scripted
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.policy_exports import ExportOptions

DEADLINE_SECS = 280.0
TALK = {'speaker': ('speaker',), 'listener': ('listener',)}
SHIFTS = {'steady': ('day',), 'others': ('night', 'late')}
GIN = """
from __gin__ import dynamic_registration

from tflearn.core import experience
from tflearn.extensions.games import pettingzoo_env
from tflearn.jobs import evaluate
from tflearn.jobs import train
from tflearn.networks import networks

include 'algorithms/dqn.gin'

make_environment = @pettingzoo_env.make
pettingzoo_env.make.game = 'tests.extensions.games.example_games:Talk'
pettingzoo_env.make.policies = {'speaker': ('speaker',), 'listener': ('listener',)}
networks.NetworkOptions.fc_layer_params = (16,)
experience.Uniform.min_size = 100
train.StopConditions.num_train_steps = 60
train.Intervals.export_interval_steps = 30
evaluate.evaluate.num_episodes = 4
"""


class Recording:
    """A partner that counts what it is asked for."""

    def __init__(self):
        self.begun, self.scores, self.batches = 0, [], []

    def begin(self):
        self.begun += 1
        return self.begun % 2  # two players

    def act(self, player, observation):
        self.batches.append(tf.nest.map_structure(np.shape, observation))
        return np.ones(len(tf.nest.flatten(observation)[0]), np.int64)

    def end(self, player, score):
        self.scores.append(score)


def test_only_the_agents_of_the_policy_are_rows_and_partners_act_in_batches():
    partner = Recording()
    teams = {'old': ('day',), 'new': ('night', 'late')}
    environment = pettingzoo_env.make(Shifts, 3, 0, teams=teams, policies=SHIFTS, partners={'others': lambda: partner})
    assert environment.num_environments == 3
    environment.reset()
    for _ in range(6):
        time_step = environment.step(np.ones(3, np.int64))
    assert time_step.step_type.tolist() == [2] * 3
    ends = {name: float(np.nanmax(value)) for name, value in environment.info.items()}
    assert ends['team_return/old'] == ends['agent_return/day'] == 6.0
    assert (ends['agent_return/night'], ends['agent_return/late'], ends['team_return/new']) == (4.0, 2.0, 6.0)
    assert partner.scores == [1.0] * 3
    sizes = {shape['observation'] for shape in partner.batches}
    assert sizes == {(1, 2), (2, 2), (4, 2)}, 'players 0 and 1 have one and two games; late joins night in each'
    environment.close()


def test_games_go_on_while_the_agents_of_the_policy_are_away():
    one = functools.partial(Scripted, lambda observation, random: 1)
    environment = pettingzoo_env.make(Shifts, 1, 0, policies=SHIFTS, partners={'steady': one}, agent_id=True)
    time_steps = [environment.reset()]
    infos = []
    for _ in range(8):
        time_steps.append(environment.step(np.ones(2, np.int64)))
        infos.append(environment.info)
    first = np.stack([time_step.step_type for time_step in time_steps])
    assert first.T.tolist() == [[0, 1, 2, 0, 0, 1, 2, 0, 1], [0, 0, 0, 0, 1, 2, 0, 0, 0]]
    assert time_steps[0].observation['agent'].tolist() == [0, 1], 'the index among the agents of the policy'
    assert infos[5]['agent_return/day'].tolist()[0] == 6.0
    assert infos[5]['team_return/all'].tolist()[0] == 12.0
    environment.close()


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ({'policies': TALK}, 'with partners=[]; need a partner for each policy but the one'),
        ({'partners': {'listener': Recording}}, 'got policies=[] with partners='),
        ({'policies': TALK, 'partners': {'listner': Recording}}, "with partners=['listner']"),
        ({'policies': {'a b': ('speaker',)}}, "got a policy 'a b'"),
        (
            {'policies': {'speaker': ('speaker',), 'listener': ()}, 'partners': {'listener': Recording}},
            'need each of the agents speaker, listener in one of them',
        ),
        (
            {'policies': {'all': ('speaker', 'listener')}},
            'need equal ones for one policy; pad them',
        ),
    ],
)
def test_wrong_mappings_are_one_line(given, message):
    with pytest.raises(ValueError, match='^got ') as raised:
        pettingzoo_env.make(Talk, 1, 0, **given)
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['speaker=talk.gin'], "got policies=['listener', 'speaker'] with partners=[]; need"),
        (['speaker=talk.gin', 'listner=talk.gin'], "with partners=['listner']; need"),
        (['speaker=talk.gin', 'listener'], "got the argument 'listener'; need POLICY=GIN_FILE"),
        (['speaker=talk.gin', 'listener=tolk.gin'], "got gin_file='tolk.gin'"),
        ([], 'got no argument; need POLICY=GIN_FILE'),
    ],
)
def test_the_program_refuses_wrong_mappings_before_it_starts(arguments, message, tmp_path):
    (tmp_path / 'talk.gin').write_text(GIN)
    ended = forks.run('scripts', 'policies', f'--root_dir={tmp_path / "runs"}', *arguments, timeout=60, cwd=tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith('tflearn policies: error: got ') and message in line
    assert not (tmp_path / 'runs').exists()


def test_the_program_trains_each_policy_in_a_run_of_its_own(tmp_path):
    (tmp_path / 'talk.gin').write_text(GIN)
    ended = forks.run(
        'scripts',
        'policies',
        f'--root_dir={tmp_path / "runs"}',
        '--mode=synchronous',
        'speaker=talk.gin',
        'listener=talk.gin',
        timeout=DEADLINE_SECS,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shapes = {'speaker': (2,), 'listener': (3,)}
    for name, other in (('speaker', 'listener'), ('listener', 'speaker')):
        run_dir = RunDir(tmp_path / 'runs' / name)
        assert read_json(run_dir.done)['train_step'] == 60
        policy = tflearn.load_policy(run_dir.root)
        assert policy.observation_spec.shape[1:] == shapes[name]
        (line,) = [json.loads(each) for each in run_dir.evaluations.read_text().splitlines()][-1:]
        assert {f'info_end/agent_return/{each}' for each in (name, other)} <= line['metrics'].keys()
        assert f'{name}: done: num_train_steps 60 reached' in ended.stdout
    table = ended.stdout.splitlines()[-2:]
    assert [line.split()[0] for line in table] == ['listener', 'speaker'], 'one view of both'


def test_what_a_failed_policy_stops_is_stopped_once(monkeypatch, tmp_path):
    program = """
import json, pathlib, signal, sys, threading
received, interrupted, clock = [], threading.Event(), threading.Event()
signal.signal(signal.SIGINT, lambda *_: (received.append(1), interrupted.set()))
signal.alarm(120)
root = pathlib.Path(json.loads(sys.argv[1])['root_dir'])
root.touch()
if root.name == 'day':
    while not all((root.parent / other).exists() for other in ('night', 'late')):
        clock.wait(0.01)
    sys.exit('no disk')
interrupted.wait(120)
clock.wait(1.0 if root.name == 'late' else 0.0)  # a checkpoint
sys.exit(130 if len(received) == 1 else 7)
"""
    monkeypatch.setattr(runs, '_RUN', program)
    each = {agent: (agent,) for agent in ('day', 'night', 'late')}
    (tmp_path / 'shifts.gin').write_text(GIN.replace(':Talk', ':Shifts').replace(str(TALK), str(each)))
    codes = policies.run(tmp_path / 'runs', dict.fromkeys(each, str(tmp_path / 'shifts.gin')), sys.stdout)
    assert codes == {'day': 1, 'night': 130, 'late': 130}


@pytest.mark.slow
def test_policies_learn_to_talk_and_their_exports_act_in_plain_tensorflow(tmp_path):
    found = tflearn.train_policies(
        {name: {'make_agent': functools.partial(dqn.make_agent, gamma=0.5)} for name in TALK},
        root_dir=tmp_path,
        make_environment=functools.partial(pettingzoo_env.make, Talk, policies=TALK),
        experience=Experience(replay=Uniform(min_size=200, samples_per_insert=4.0), batch=BatchItems(32)),
        num_train_steps=3000,
        num_environments=4,
        export_interval_steps=1500,
        exports=ExportOptions(('greedy_policy', 'collect_policy'), update_interval_steps=50),
        seed=1,
    )
    assert {run.train_step for run in found.values()} == {3000}
    models = {name: tf.saved_model.load(str(run.run_dir.greedy_policy / 'latest')) for name, run in found.items()}
    act = {name: model.signatures['serving_default'] for name, model in models.items()}
    game, total = Talk(), 0.0
    observations, _ = game.reset(seed=5)
    for _ in range(10):
        while game.agents:
            batches = {name: tf.constant(observations[name][np.newaxis]) for name in game.agents}
            actions = {name: int(act[name](observation=batch)['action'][0]) for name, batch in batches.items()}
            observations, rewards, *_ = game.step(actions)
            total += rewards['listener']
        observations, _ = game.reset()
    assert total >= 60, 'of 70; without talking 35'
