"""What a server decides is logged in whole files, with the probabilities of what was served; nothing waits for it."""

import collections
import contextlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from scripts import __path__ as scripts_path
from tests.agents import example_data
from tests.testing import example_policies, forks, served_policies
from tflearn.agents import linear_bandit
from tflearn.agents.smoothing import Smoothing
from tflearn.agents.value_exploration import SquareCB
from tflearn.core.errors import UserOSError
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.core.waiting import is_listening, wait_until
from tflearn.extensions.serving import apprentice
from tflearn.extensions.serving.client import PolicyClient
from tflearn.extensions.serving.decision_files import DecisionFiles, DecisionLogOptions
from tflearn.extensions.serving.decision_log import DecisionLog
from tflearn.extensions.serving.exploration import Chooser, Exploration
from tflearn.extensions.serving.models import Models
from tflearn.extensions.serving.served_version import InvalidRequest, ServedVersion
from tflearn.extensions.serving.server import PolicyServer
from tflearn.launch.local import free_port
from tflearn.net.server_options import ServerOptions
from tflearn.policies.exporter import PolicyExporter

DEADLINE_SECS = 120.0
NAMES = ('action', 'event_id', 'probability')
OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """Policies: greedy, one that draws, and one of continuous actions."""
    root = tmp_path_factory.mktemp('policies')
    served_policies.Publisher(root).publish(7)
    PolicyExporter(example_policies.q_learning(), root / 'raw_policy').export(3, {})
    PolicyExporter(example_policies.stochastic_actor(), root / 'actor_policy').export(3, {})
    return root


@contextlib.contextmanager
def serving(root, directory, exploration=None, names=('greedy_policy', 'raw_policy'), **options):
    """Serves with a log; yields a function that asks, and a counter of what became of decisions."""
    counts = collections.Counter()
    count = lambda kind, result, number: counts.update({result: number})  # noqa: E731
    models = Models(root, lambda path: ServedVersion(path, exploration=exploration), names)
    models.refresh()
    log = DecisionLog(DecisionLogOptions(str(directory), **options), directory / 'spool', count)
    server = PolicyServer(models, ServerOptions(), log=log)
    with grpc.insecure_channel(f'localhost:{server.port}') as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

        def ask(
            observation=OBSERVATION, model='greedy_policy', names=('action', 'event_id', 'probability'), **metadata
        ):
            request = predict_pb2.PredictRequest(output_filter=names)
            request.model_spec.name = model
            request.inputs['observation'].CopyFrom(tf.make_tensor_proto(observation))
            headers = [(name.replace('_', '-'), value) for name, value in metadata.items()]
            answer = stub.Predict(request, DEADLINE_SECS, headers)
            return {name: tf.make_ndarray(value) for name, value in answer.outputs.items()}

        try:
            yield ask, counts
        finally:
            server.close(0)
            log.close()


def lines_of(directory, kind='decisions'):
    return [
        json.loads(line) for path in sorted(directory.glob(f'{kind}-*.jsonl')) for line in path.read_text().splitlines()
    ]


def test_every_decision_is_logged_as_it_was_answered(root, tmp_path):
    before = time.time()
    with serving(root, tmp_path) as (ask, counts):
        one = ask(OBSERVATION[:1], event_id='visit/7', experiment_arm='b')
        two = ask()
        assert ask(names=()).keys() == {'action'}  # as without a log
    first, *rest = lines_of(tmp_path)
    assert before <= first.pop('time') <= time.time()
    assert first == {
        'id': 'visit/7', 'model': 'greedy_policy', 'version': 7, 'arm': 'b', 'observation': [1, 0, 0, 0], 'action': 1,
        'probability': 1.0,
    }  # fmt: skip
    assert one['event_id'].tolist() == [b'visit/7'] and one['probability'].tolist() == [1]
    assert [line['id'].encode() for line in rest[:2]] == two['event_id'].tolist()
    assert [line['action'] for line in rest[:2]] == two['action'].tolist() == [1, 0]
    assert len(rest) == 4 and counts == {'logged': 5}


def test_probabilities_are_those_of_what_is_served(root, tmp_path):
    # Of two actions, 0.3 is drawn evenly; the policy takes 1.
    with serving(root, tmp_path / 'greedy', Exploration(0.3), ['greedy_policy']) as (ask, _):
        found = [ask(np.repeat(OBSERVATION[:1], 500, axis=0)) for _ in range(4)]
    actions = np.concatenate([each['action'] for each in found])
    probabilities = np.concatenate([each['probability'] for each in found])
    np.testing.assert_allclose(probabilities, np.where(actions == 1, 0.85, 0.15), rtol=1e-6)
    assert abs(actions.mean() - 0.85) < 5 * np.sqrt(0.85 * 0.15 / len(actions))
    np.testing.assert_allclose(
        [line['probability'] for line in lines_of(tmp_path / 'greedy')], probabilities, rtol=1e-6
    )
    # A policy that draws: the logits, divided by the temperature.
    with serving(root, tmp_path / 'raw', Exploration(0.1, 2.0), ['raw_policy']) as (ask, _):
        found = ask(np.repeat(OBSERVATION[:1], 1000, axis=0), 'raw_policy')
    signature = ServedVersion(root / 'raw_policy' / '3').signature('distribution')
    given = {'step_type': np.ones(1, np.int32), 'reward': np.zeros(1, np.float32), 'discount': np.ones(1, np.float32)}
    logits = signature.run({**given, 'observation': OBSERVATION[:1]})['distribution_logits'][0].astype(np.float64) / 2
    need = 0.9 * np.exp(logits) / np.exp(logits).sum() + 0.1 / 4
    np.testing.assert_allclose(found['probability'], need[found['action']], rtol=1e-5)
    shares = np.bincount(found['action'], minlength=4) / 1000
    assert (np.abs(shares - need) < 5 * np.sqrt(need / 1000)).all()


def test_thompson_sampling_is_served_with_the_probabilities_of_its_draws(tmp_path):
    specs = EnvironmentSpecs(example_policies.OBSERVATION, example_policies.DISCRETE)
    options = linear_bandit.LinearOptions('thompson')
    agent = linear_bandit.make_agent(specs, create_train_step(), linear_bandit.EXPERIENCE, options=options)
    agent.train(example_data.sequences(agent, 6, 3, 0))
    PolicyExporter(agent.collect_policy, tmp_path / 'collect_policy').export(1, {})
    rows = np.repeat(np.float32([[0.6, -0.4, 0.2, 0.9]]), 1000, axis=0)
    with serving(tmp_path, tmp_path / 'log', names=['collect_policy']) as (ask, _):
        found = [ask(rows, 'collect_policy') for _ in range(4)]
    actions, probabilities = (np.concatenate([each[name] for each in found]) for name in ('action', 'probability'))
    counts = probabilities * linear_bandit.NUM_DRAWS
    np.testing.assert_allclose(counts, counts.round(), atol=1e-3)
    assert probabilities.min() > 0 and probabilities.max() < 1
    time_step = ts.restart(tf.constant(np.repeat(rows[:1], 20_000, axis=0)), 20_000)
    need = np.bincount(agent.collect_policy.action(time_step).action, minlength=4) / 20_000
    assert (np.abs(np.bincount(actions, minlength=4) / 4000 - need) < 5 * np.sqrt(need / 4000) + 0.01).all()
    weights = np.bincount(actions, 1 / probabilities, minlength=4) / 4000  # 1, where every batch of draws has the arm
    assert (np.abs(weights - 1)[need > 0.05] < 0.2).all(), (weights, need)
    np.testing.assert_allclose([line['probability'] for line in lines_of(tmp_path / 'log')], probabilities, rtol=1e-6)


def test_squarecb_is_served_with_the_probabilities_of_its_formula(tmp_path):
    specs = EnvironmentSpecs(example_policies.OBSERVATION, example_policies.DISCRETE)
    options = linear_bandit.LinearOptions(SquareCB(10.0))
    agent = linear_bandit.make_agent(specs, create_train_step(), linear_bandit.EXPERIENCE, options=options)
    agent.train(example_data.sequences(agent, 6, 3, 0))
    PolicyExporter(agent.collect_policy, tmp_path / 'collect_policy').export(1, {})
    rows = np.repeat(np.float32([[0.6, -0.4, 0.2, 0.9]]), 1000, axis=0)
    with serving(tmp_path, tmp_path / 'log', Exploration(0.1), ['collect_policy']) as (ask, _):
        found = ask(rows, 'collect_policy')
    values = agent.policy.wrapped_policy.scores(tf.constant(rows[:1])).numpy()[0].astype(np.float64)
    need = 1 / (4 + 10.0 * (values.max() - values))
    need[values.argmax()] += 1 - need.sum()
    need = 0.9 * need + 0.1 / 4
    np.testing.assert_allclose(found['probability'], need[found['action']], rtol=1e-4)
    shares = np.bincount(found['action'], minlength=4) / 1000
    assert (np.abs(shares - need) < 5 * np.sqrt(need / 1000)).all() and np.ptp(need) > 0.1
    logged = [line['probability'] for line in lines_of(tmp_path / 'log')]
    np.testing.assert_allclose(logged, found['probability'], rtol=1e-6)


def test_a_smoothed_number_is_served_with_its_exact_density(tmp_path):
    price = tensor_spec.BoundedTensorSpec((), tf.float32, 2.0, 10.0, 'action')
    specs = EnvironmentSpecs(example_policies.OBSERVATION, price)
    options = {'options': linear_bandit.LinearOptions(SquareCB(10.0)), 'smoothing': Smoothing(8, 1.5, epsilon=0.2)}
    agent = linear_bandit.make_agent(specs, create_train_step(), linear_bandit.EXPERIENCE, **options)
    agent.train(example_data.sequences(agent, 6, 3, 0)._replace(action=tf.constant([[3.0, 5.0, 9.0]] * 6)))
    PolicyExporter(agent.collect_policy, tmp_path / 'collect_policy').export(1, {})
    rows = np.repeat(np.float32([[0.6, -0.4, 0.2, 0.9]]), 1000, axis=0)
    with serving(tmp_path, tmp_path / 'log', Exploration(0.1), ['collect_policy']) as (ask, _):
        found = [ask(rows, 'collect_policy') for _ in range(4)]
    prices, densities = (np.concatenate([each[name] for each in found]) for name in ('action', 'probability'))
    assert prices.dtype == np.float32 and prices.min() >= 2 and prices.max() <= 10
    own = agent.collect_policy.distribution(ts.restart(tf.constant(rows[:1]), 1)).action
    np.testing.assert_allclose(densities, 0.9 * own.prob(prices) + 0.1 / 8, rtol=1e-5)
    # Windows begin and end at whole numbers: between two of them the density is the same.
    of_part = np.array([densities[np.floor(prices) == part][0] for part in range(2, 10)])
    assert of_part.sum() == pytest.approx(1, abs=1e-6) and np.ptp(of_part) > 0.05
    shares = np.histogram(prices, np.arange(2, 11))[0] / 4000
    assert (np.abs(shares - of_part) < 5 * np.sqrt(of_part / 4000)).all()
    logged = lines_of(tmp_path / 'log')
    assert [line['action'] for line in logged] == prices.tolist()
    np.testing.assert_allclose([line['probability'] for line in logged], densities, rtol=1e-6)
    with pytest.raises(ValueError, match='need logits for a temperature'):
        ServedVersion(tmp_path / 'collect_policy' / '1', exploration=Exploration(temperature=2.0))


def test_a_smoothed_vector_is_served_with_its_exact_density(tmp_path):
    box = tensor_spec.BoundedTensorSpec((2,), tf.float32, np.float32([2, 0]), np.float32([10, 4]), 'action')
    specs = EnvironmentSpecs(example_policies.OBSERVATION, box)
    options = {'options': linear_bandit.LinearOptions(SquareCB(1_000.0)), 'smoothing': Smoothing(4, epsilon=0.2)}
    agent = linear_bandit.make_agent(specs, create_train_step(), linear_bandit.EXPERIENCE, **options)
    taken = tf.constant([[[3.0, 1.0], [5.0, 2.5], [9.0, 3.0]]] * 6)
    agent.train(example_data.sequences(agent, 6, 3, 0)._replace(action=taken))
    PolicyExporter(agent.collect_policy, tmp_path / 'collect_policy').export(1, {})
    rows = np.repeat(np.float32([[0.6, -0.4, 0.2, 0.9]]), 1000, axis=0)
    with serving(tmp_path, tmp_path / 'log', Exploration(0.1), ['collect_policy']) as (ask, _):
        found = [ask(rows, 'collect_policy') for _ in range(4)]
    actions, densities = (np.concatenate([each[name] for each in found]) for name in ('action', 'probability'))
    assert actions.shape == (4000, 2) and actions.dtype == np.float32
    own = agent.collect_policy.distribution(ts.restart(tf.constant(rows[:1]), 1)).action
    np.testing.assert_allclose(densities, 0.9 * own.prob(actions) + 0.1 / 32, rtol=1e-5)
    cells = np.floor((actions - [2, 0]) / [2, 1]).astype(int).clip(0, 3) @ [4, 1]
    of_cell = 2 * np.array([densities[cells == cell][0] for cell in range(16)])
    assert of_cell.sum() == pytest.approx(1, abs=1e-5) and np.ptp(of_cell) > 0.05
    assert (np.abs(np.bincount(cells) / 4000 - of_cell) < 5 * np.sqrt(of_cell / 4000)).all()
    logged = lines_of(tmp_path / 'log')
    assert [line['action'] for line in logged] == actions.tolist()
    np.testing.assert_allclose([line['probability'] for line in logged], densities, rtol=1e-6)


def test_only_legal_actions_are_drawn():
    metadata = {
        'specs': {'action': {'dtype': 'int64', 'shape': [], 'minimum': 5, 'maximum': 8}},
        'action_mask': 'a.mask',
    }
    chooser = Chooser(metadata, {'distribution': ('distribution_loc',)}, Exploration(1.0))
    mask = np.tile([[1, 0, 1, 0]], (300, 1))
    inputs, greedy = {'observation_a_mask': mask}, {'action': np.full(300, 7, np.int32)}
    outputs = chooser(inputs, greedy, np.random.default_rng(1))
    assert set(outputs['action'].tolist()) == {5, 7} and outputs['action'].dtype == np.int32
    np.testing.assert_allclose(outputs['probability'], 0.5)
    outputs = chooser({'observation_a_mask': np.zeros_like(mask)}, greedy, np.random.default_rng(1))
    assert set(outputs['action'].tolist()) == {5, 6, 7, 8}, 'nothing is legal'
    np.testing.assert_allclose(outputs['probability'], 0.25)
    own = {'default-action': ','.join(['5'] * 299 + [' 7'])}
    assert apprentice.default_actions(chooser, own, inputs)[-2:].tolist() == [5, 7]
    with pytest.raises(InvalidRequest, match='got default-action: 6, which observation_a_mask rules out; need a legal'):
        apprentice.default_actions(chooser, {'default-action': '6'}, {'observation_a_mask': mask[:1]})


def test_the_legal_actions_are_logged(tmp_path):
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool')
    for i in range(3):
        log.record(
            'greedy_policy', 7, {'observation_mask': np.array([[1, 0, 1], [0, i, 0]])}, choices(2), 'observation_mask'
        )
    log.close()
    assert [line['mask'] for line in lines_of(tmp_path)] == [[0, 2], [], [0, 2], [1], [0, 2], [1]]


def test_requests_that_are_packed_together_keep_their_own_lines(tmp_path):
    log = DecisionLog(DecisionLogOptions(str(tmp_path), hashed=('user',), key='a' * 16), tmp_path / 'spool')
    for i, length in enumerate((2, 2, 3, 2)):  # of two shapes
        inputs = {'x': np.full((2, length), i), 'user': np.array([b'me', b'someone else' * i], object)}
        outputs = {'action': np.array([i, 10 + i]), 'probability': np.array([0.5, i / 8])}
        log.record('greedy_policy', 7, inputs, outputs, '', f'{i}', f'arm {i}')
    log.close()
    found = lines_of(tmp_path)
    assert [(line['id'], line['action'], line['probability'], line['arm']) for line in found] == [
        (f'{i}-{j}', 10 * j + i, i / 8 if j else 0.5, f'arm {i}') for i in range(4) for j in range(2)
    ]
    assert [line['x'] for line in found[::2]] == [[0, 0], [1, 1], [2, 2, 2], [3, 3]]
    assert len({line['user'] for line in found[::2]}) == 1 and len({line['user'] for line in found}) == 5


def test_texts_are_logged(tmp_path):
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool')
    log.record('greedy_policy', 7, {'name': np.array(['bär'.encode(), b'\xff'], object)}, choices(2))
    log.close()
    assert [line['name'] for line in lines_of(tmp_path)] == ['bär', '\ufffd']


def test_what_cannot_explore_is_refused(root):
    for exploration in (Exploration(0.1), Exploration(temperature=2.0)):
        with pytest.raises(
            ValueError, match=r'got Exploration\(.* for a policy with no known probabilities; need logits'
        ):
            ServedVersion(root / 'actor_policy' / '3', exploration=exploration)
    with pytest.raises(ValueError, match='for a policy with .*distribution_loc.*; need logits for a temperature'):
        ServedVersion(root / 'greedy_policy' / '7', exploration=Exploration(temperature=2.0))


def test_unknown_probabilities_are_none(root, tmp_path):
    with serving(root, tmp_path, names=['actor_policy']) as (ask, _):
        answer = ask(model='actor_policy')
    assert [line['probability'] for line in lines_of(tmp_path)] == [None, None] and 'probability' not in answer
    np.testing.assert_allclose([line['action'] for line in lines_of(tmp_path)], answer['action'])


def test_a_share_of_the_requests_is_logged_by_their_ids(root, tmp_path):
    for name in ('one', 'two'):
        with serving(root, tmp_path / name, share=0.5) as (ask, counts):
            for i in range(100):
                ask(OBSERVATION[:1], event_id=f'{i}')
        assert counts['logged'] + counts['not_chosen'] == 100 and 25 < counts['logged'] < 75
    one, two = ([line['id'] for line in lines_of(tmp_path / name)] for name in ('one', 'two'))
    assert one == two


def test_inputs_are_left_out_or_hashed(root, tmp_path):
    with serving(root, tmp_path / 'omitted', omitted=('observation',)) as (ask, _):
        ask()
    assert all('observation' not in line for line in lines_of(tmp_path / 'omitted'))
    hashes = []
    for key in ('a' * 16, 'a' * 16, 'b' * 16):
        with serving(root, tmp_path / f'{len(hashes)}', hashed=('observation',), key=key) as (ask, _):
            ask()
        hashes.append([line['observation'] for line in lines_of(tmp_path / f'{len(hashes)}')])
    assert hashes[0] == hashes[1] != hashes[2] and len(set(hashes[0])) == 2 and len(hashes[0][0]) == 64


def test_what_the_policy_does_not_take_cannot_be_left_out(root, tmp_path):
    flags = [f'--decision_log={tmp_path / "log"}', '--decision_log_omit=observation_user', '--connect_timeout_secs=1']
    (tmp_path / 'policies').symlink_to(root)
    served = (f'--root_dir={tmp_path}', '--policies=greedy_policy', f'--port={free_port()}')
    ended = forks.run('scripts.serve', *served, *flags, timeout=DEADLINE_SECS)
    assert ended.returncode == 69
    error = 'got observation_user for --decision_log_omit or --decision_log_hash; need inputs of the policy, such as'
    assert f'version 7 is not served: {error} observation' in ended.stderr


def choices(n=1):
    return {'action': np.zeros(n, np.int64)}


def test_what_waits_is_bounded_and_drops_are_counted(tmp_path, monkeypatch):
    counts = collections.Counter()
    count = lambda kind, result, number: counts.update({result: number})  # noqa: E731
    monkeypatch.setattr('tflearn.extensions.serving.decision_log.WAKE_SECS', 3600.0)
    log = DecisionLog(DecisionLogOptions(str(tmp_path), max_waiting=10), tmp_path / 'spool', count)
    for _ in range(25):
        log.record('greedy_policy', 7, {}, choices())
    assert counts == {'dropped': 15}
    log.close()
    assert counts == {'dropped': 15, 'logged': 10} and len(lines_of(tmp_path)) == 10


def test_bytes_that_wait_are_bounded(tmp_path, monkeypatch):
    counts = collections.Counter()
    count = lambda kind, result, number: counts.update({result: number})  # noqa: E731
    monkeypatch.setattr('tflearn.extensions.serving.decision_log.WAKE_SECS', 3600.0)
    monkeypatch.setattr('tflearn.extensions.serving.decision_log.MAX_BYTES', 1000)
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool', count)
    for _ in range(25):
        log.record('greedy_policy', 7, {'x': np.zeros((1, 25), np.float32)}, choices())
    assert counts == {'dropped': 15} and not log.record_outcomes([b'{}\n'])
    log.close()
    assert counts['logged'] == 10


def test_files_rotate_and_old_ones_are_deleted(tmp_path):
    old = tmp_path / 'decisions-old.jsonl'
    old.write_text('{}\n')
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    log = DecisionLog(DecisionLogOptions(str(tmp_path), file_secs=0.01, keep_days=1.0), tmp_path / 'spool')
    for i in range(3):
        log.record('greedy_policy', 7, {}, choices(), '', f'{i}')
        wait_until(lambda i=i: len(list(tmp_path.glob('decisions-*'))) == i + 1 + old.exists(), 'a file', DEADLINE_SECS)
    log.close()
    assert [line['id'] for line in lines_of(tmp_path)] == ['0', '1', '2'] and not old.exists()
    assert list(tmp_path.glob('.decisions-*')) == []


def test_an_empty_file_does_not_hold_back_the_end_of_the_log(tmp_path):
    """Where a server has begun a file of outcomes, the log ends: one that gets none would end it for ever."""
    files = DecisionFiles(DecisionLogOptions(str(tmp_path), file_secs=1e-6), tmp_path / 'spool', 'outcomes')
    files.begin()
    assert len(list(tmp_path.glob('.outcomes-*'))) == 1
    files.rotate()
    assert list(tmp_path.iterdir()) == []
    files.write(b'{}\n')
    files.close()
    assert lines_of(tmp_path, 'outcomes') == [{}]


def test_files_go_to_a_store(tmp_path):
    pytest.importorskip('fsspec', reason='needs fsspec: the extra stores')
    log = DecisionLog(DecisionLogOptions(f'file://{tmp_path}/store', file_secs=0.01), tmp_path / 'spool')
    log.record('greedy_policy', 7, {}, choices(), '', 'a')
    wait_until(lambda: list((tmp_path / 'store').glob('decisions-*')), 'the file', DEADLINE_SECS)
    log.record('greedy_policy', 7, {}, choices(), '', 'b')
    log.close()
    assert {line['id'] for line in lines_of(tmp_path / 'store')} == {'a', 'b'}
    assert list((tmp_path / 'spool').iterdir()) == []
    assert stat.S_IMODE((tmp_path / 'spool').stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserOSError, match='got --decision_log=.*file .*; need one that can be written'):
        DecisionLog(DecisionLogOptions(str(tmp_path / 'file')), tmp_path / 'spool')


def test_a_killed_server_loses_only_what_waited(root, tmp_path):
    """The real program, killed while it answers: what was answered a second before is in the log."""
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'policies').symlink_to(root)
    port, directory = free_port(), tmp_path / 'log'
    flags = (f'--root_dir={tmp_path}/run', f'--port={port}', '--policies=greedy_policy', f'--decision_log={directory}')
    command = [sys.executable, '-m', 'scripts.serve', *flags, '--epsilon=0.2']
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
    with subprocess.Popen(command, cwd=os.path.dirname(scripts_path[0]), env=environment) as program:
        try:
            wait_until(lambda: is_listening(f'localhost:{port}', 1.0), 'the server', DEADLINE_SECS)
            answered = []
            with (
                grpc.insecure_channel(f'localhost:{port}') as channel,
                contextlib.closing(PolicyClient(f'localhost:{port}')) as client,
            ):
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                request = predict_pb2.PredictRequest()
                request.model_spec.name = 'greedy_policy'
                request.output_filter.extend(['event_id', 'action'])
                request.inputs['observation'].CopyFrom(tf.make_tensor_proto(OBSERVATION[:1]))
                wait_until(lambda: _answers(stub, request), 'the policy', DEADLINE_SECS)
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    answer = stub.Predict(request, DEADLINE_SECS)
                    event_id = answer.outputs['event_id'].string_val[0].decode()
                    client.record_outcomes([{'event_id': event_id, 'reward': 1.0}])
                    answered.append((time.monotonic(), event_id))
        finally:
            program.send_signal(signal.SIGKILL)
            program.wait(DEADLINE_SECS)
    wait_until(lambda: not list(directory.glob('.*.jsonl')), 'the files', DEADLINE_SECS)
    due = {event_id for at, event_id in answered if at < end - 1.0}
    assert len(due) > 20 and due <= {line['id'] for line in lines_of(directory)}
    assert due <= {line['event_id'] for line in lines_of(directory, 'outcomes')}


def test_what_a_machine_left_is_completed_without_a_torn_line(tmp_path):
    alive = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool')
    wait_until(lambda: list(tmp_path.glob('.decisions-*')), 'the file', DEADLINE_SECS)
    (tmp_path / '.decisions-left.jsonl').write_bytes(b'{"id":"a"}\n{"id":"b"}\n{"id":"to')
    DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool').close()
    assert [line['id'] for line in lines_of(tmp_path)] == ['a', 'b']
    alive.record('greedy_policy', 7, {}, choices(), '', 'c')  # its file was not touched
    alive.close()
    assert [line['id'] for line in lines_of(tmp_path)] == ['c', 'a', 'b']


def test_a_full_disk_takes_no_part_of_lines(tmp_path):
    """The limit of a file's size stands for the disk: a part of what is written has room."""
    files = DecisionFiles(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool', 'decisions')
    requests = [b'{"id": "%d", "more": "%s"}\n' % (i, b'x' * 80) for i in range(12)]
    files.write(b''.join(requests[:5]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (next(tmp_path.glob('.decisions-*')).stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(OSError):
            files.write(b''.join(requests[5:10]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    files.write(b''.join(requests[10:]))
    files.close()
    assert [line['id'] for line in lines_of(tmp_path)] == ['0', '1', '2', '3', '4', '10', '11']


def test_a_process_that_died_is_started_again(tmp_path):
    counts = collections.Counter()
    count = lambda kind, result, number: counts.update({result: number})  # noqa: E731
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool', count)
    log._process.kill()
    log._process.join(DEADLINE_SECS)
    for i in range(2):
        log.record('greedy_policy', 7, {}, choices(), '', f'{i}')
        wait_until(lambda i=i: sum(counts.values()) == i + 1, 'the decision', DEADLINE_SECS)
    log.close()
    assert counts == {'logged': 2} and [line['id'] for line in lines_of(tmp_path)] == ['0', '1']


def _answers(stub, request):
    try:
        return stub.Predict(request, DEADLINE_SECS)
    except grpc.RpcError:
        return None
