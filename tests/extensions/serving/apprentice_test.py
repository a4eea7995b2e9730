"""An apprentice on the real server: the product's own choice is answered and logged until the policy matches it."""

import contextlib
import json
import re
import signal
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

import grpc

from tests.testing import forks
from tests.testing.served_policies import Publisher
from tflearn.core import extensions
from tflearn.core.waiting import is_listening, wait_until
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.serving.client import PolicyClient
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_port
from tflearn.policies import states

DEADLINE_SECS = 120.0
MODEL = '/v1/models/greedy_policy'
COLUMNS = """
reward = 'reward'
reward_range = [0, 1]
propensity = 'probability'
action = {kind = 'integer', high = 1}
observation.observation = {column = 'observation_observation', length = 4}
"""


@pytest.fixture
def rows():
    """Observations, and the product's own choice: 1 for those above 0, in every tenth one the opposite."""
    observation = np.random.default_rng(0).normal(size=(60, 4)).round(3)
    choice = (observation[:, 0] > 0).astype(int)
    choice[::10] = 1 - choice[::10]
    return [*zip(observation.tolist(), choice.tolist(), strict=True)]


def post(port, path, message, **headers):
    """Returns the status, and the answer or the error."""
    named = {name.replace('_', '-'): value for name, value in headers.items()}
    request = urllib.request.Request(f'http://localhost:{port}{path}', json.dumps(message).encode(), named)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)['error']


def ask(port, observation, **headers):
    return post(port, f'{MODEL}:predict', {'instances': [{'observation_observation': observation}]}, **headers)


@contextlib.contextmanager
def serving(root, ports, end=signal.SIGTERM):
    """A server whose policies are apprentices, at the ports of gRPC, of REST and of the metrics."""
    log = root / f'serve-{end}.log'
    names = ('port', 'rest_port', 'metrics_port')
    program = forks.start(
        'scripts.serve',
        f'--root_dir={root}',
        *(f'--{name}={port}' for name, port in zip(names, ports, strict=True)),
        '--apprentice',
        '--epsilon=0.5',
        f'--decision_log={root}/log',
        '--decision_log_file_secs=0.3',
        log=log,
    )
    try:
        wait_until(lambda: is_listening(f'localhost:{ports[1]}'), 'the server', DEADLINE_SECS)
        wait_until(lambda: 'serves version' in log.read_text(), 'a version', DEADLINE_SECS)
        yield program
    finally:
        program.send_signal(end)
        assert program.wait(DEADLINE_SECS) in (0, -signal.SIGKILL), log.read_text()


def lines_of(root):
    """The decisions of files that are complete."""
    texts = [path.read_text() for path in sorted((root / 'log').glob('decisions-*.jsonl'))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def promote(root, *flags):
    ended = forks.run('scripts', 'promote', f'--root_dir={root}', *flags, timeout=DEADLINE_SECS)
    assert 'Traceback' not in ended.stderr, ended.stderr
    return ended


def read_metrics(port):
    with urllib.request.urlopen(f'http://localhost:{port}/metrics') as answer:
        return answer.read().decode()


def check_wrong_choices(port, observation):
    for text, error in (
        (None, 'got no default-action; need the action that the product takes by itself, 0 to 1, such as'),
        ('2', 'got default-action: 2; need the action that the product takes by itself, 0 to 1'),
        ('first', 'got default-action: first; need'),
        ('0,1', 'got default-action: 0,1; need'),
    ):
        status_code, message = ask(port, observation, **({'default_action': text} if text else {}))
        assert status_code == 400 and error in message


def check_promotion(root, policies):
    """What was counted is in the log, whichever server has written it; and only what is ready acts."""
    ended = promote(root, f'--apprentice={root}/log', '--decisions=20')
    assert ended.returncode == 0 and ended.stdout.splitlines() == [
        'version 3: as the product in 54 of 60 decisions (90.0%), in 18 of the last 20 (90.0%); need 90.0% of the '
        'last 20: ready',
        'version 2: as the product in 4 of 41 decisions (9.8%), in 1 of the last 20 (5.0%); need 90.0% of the '
        'last 20: not ready',
    ], ended.stderr
    judged = f'--apprentice={root}/log', '--candidate=3'
    for flags in ([], ['--decisions=60', '--agreement=0.95']):
        ended = promote(root, *judged, *flags)
        assert ended.returncode == 1 and 'not ready' in ended.stdout.splitlines()[0], ended.stderr
    assert states.read(policies) is None
    ended = promote(root, *judged, '--decisions=60', '--why=it matches')
    assert ended.returncode == 0 and 'stable 3: it matches: as the product in 54 of 60' in re.sub(
        ' +', ' ', ended.stdout
    )


def check_gate(root, publisher, lines):
    """No gate takes the log of the product's own choices for an explored one."""
    rewarded = [line | {'reward': line['action']} for line in lines]
    (root / 'log.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in rewarded))
    (root / 'map.toml').write_text(COLUMNS)
    extensions.load('import').import_logs([root / 'log.jsonl'], root / 'map.toml', root / 'data')
    assert EpisodeReader(Dataset([f'{root}/data'])).num_episodes == 101
    publisher.publish(4)
    ended = promote(root, '--candidate=4', f'--data={root}/data', '--margin=0.1')
    assert (
        ended.returncode == 1 and 'actions were logged with probability 1, where the candidate may take' in ended.stdout
    )


def test_an_apprentice_acts_once_it_decides_as_the_product(tmp_path, rows):
    publisher = Publisher(tmp_path / 'policies', part='observation')
    publisher.publish(2)  # which decides the opposite
    ports = _, port, metrics_port = free_port(), free_port(), free_port()
    client, own = PolicyClient(f'localhost:{ports[0]}'), [rows[1][1]]
    inputs = {'observation_observation': np.float32([rows[1][0]])}
    decide = lambda secs=DEADLINE_SECS: client.decide(inputs, own, secs, {'event-id': 'back'})  # noqa: E731
    with serving(tmp_path, ports, signal.SIGKILL):
        check_wrong_choices(port, rows[0][0])
        for number, (observation, choice) in enumerate(rows[:40]):
            answer = ask(port, observation, default_action=str(choice), event_id=f'a-{number}')
            assert answer == (200, {'predictions': [choice]})
        status = lambda: read_json(RunDir(tmp_path).status('serve')) or {}  # noqa: E731
        wait_until(lambda: status().get('greedy_policy_agreement_decisions') == 40, 'the status', DEADLINE_SECS)
        assert status()['greedy_policy_agreement'] == status()['greedy_policy_recent_agreement'] == 0.1
        metrics = read_metrics(metrics_port)
        assert 'tflearn_apprentice_decisions_total{model="greedy_policy",result="same"} 4.0' in metrics
        assert 'tflearn_apprentice_agreement{model="greedy_policy"} 0.1' in metrics
        wait_until(lambda: len(lines_of(tmp_path)) >= 40, 'the log', DEADLINE_SECS)
    # Without a server the product's own choice is taken, and not logged.
    actions, version, error, _ = decide()
    assert (actions.tolist(), version) == (own, None) and error.startswith('UNAVAILABLE: ')
    with serving(tmp_path, ports) as server:
        actions, version, error, _ = wait_until(lambda: (found := decide()).version and found, 'it', DEADLINE_SECS)
        assert (actions.tolist(), version, error) == (own, 2, '')
        publisher.publish(3)
        is_asked = lambda: status().get('greedy_policy_version') == 3  # noqa: E731
        wait_until(is_asked, 'the new version', DEADLINE_SECS)
        for number, (observation, choice) in enumerate(rows):
            answer = ask(port, observation, default_action=str(choice), event_id=f'b-{number}')
            assert answer == (200, {'predictions': [choice]})
        wait_until(lambda: len(lines_of(tmp_path)) >= 101, 'the log', DEADLINE_SECS)
        lines = lines_of(tmp_path)
        assert [line['id'] for line in lines] == [f'a-{i}' for i in range(40)] + ['back'] + [
            f'b-{i}' for i in range(60)
        ]
        assert {(line['arm'], line['probability']) for line in lines} == {('apprentice', 1.0)}
        assert [line['action'] for line in lines[41:]] == [choice for _, choice in rows]
        check_promotion(tmp_path, publisher.directory)
        wait_until(lambda: ask(port, rows[0][0])[0] == 200, 'the policy', DEADLINE_SECS)
        found = [ask(port, observation, default_action=str(choice))[1] for observation, choice in rows[:20]]
        assert found != [{'predictions': [choice]} for _, choice in rows[:20]], 'half of a half is drawn'
        wait_until(lambda: status()['greedy_policy_recent_agreement'] is None, 'the status', DEADLINE_SECS)
        assert 'tflearn_apprentice_agreement{model="greedy_policy"} NaN' in read_metrics(metrics_port)
        assert decide().version == 3
        server.send_signal(signal.SIGSTOP)
        assert decide(0.1)[:2] == (own, None) and decide(0.1).error.startswith('DEADLINE_EXCEEDED: ')
        server.send_signal(signal.SIGCONT)
        (publisher.directory / states.FILE).unlink()
        wait_until(lambda: ask(port, rows[0][0])[0] == 400, 'the apprentice', DEADLINE_SECS)
        with pytest.raises(ValueError, match='got the default 1; need an action for each of the 1 rows'):
            client.decide(inputs, 1, 1.0)
        with pytest.raises(grpc.RpcError, match='got the input'):
            client.decide({'x': np.zeros(1)}, own, DEADLINE_SECS)
    client.close()
    check_gate(tmp_path, publisher, lines)
