"""Outcomes that clients report are written beside the decisions, and joined with them to one data set."""

import contextlib
import json
import os
import threading
import time

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc
import tensorflow as tf

from tests.extensions.serving.decision_faults_test import full_disk
from tests.extensions.serving.decision_log_test import DEADLINE_SECS, OBSERVATION, lines_of
from tests.extensions.serving.rest_test import ask, curl, docs_commands
from tests.testing import forks
from tflearn.core import extensions
from tflearn.core.errors import UserError
from tflearn.data import columns, metadata
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.serving import decision_log
from tflearn.extensions.serving.client import PolicyClient
from tflearn.extensions.serving.decision_files import DecisionLogOptions
from tflearn.extensions.serving.decision_log import DecisionLog
from tflearn.extensions.serving.models import Models
from tflearn.extensions.serving.rest import RestServer
from tflearn.extensions.serving.served_version import ServedVersion
from tflearn.extensions.serving.server import PolicyServer, ServingMetrics
from tflearn.net.server_options import ServerOptions

PREDICT = '/v1/models/greedy_policy:predict'
MAP = "action = {kind = 'integer', high = 1}\nobservation = {x = {column = 'observation', length = 4, missing = 0}}"


@contextlib.contextmanager
def serving(root, directory=None, **options):
    """A server that keeps outcomes in `directory`. Yields its ports of REST and gRPC, and its metrics."""
    models = Models(root, ServedVersion, ['greedy_policy'])
    models.refresh()
    metrics = ServingMetrics(models)
    with contextlib.ExitStack() as ending:
        log = None
        if directory:
            log = DecisionLog(DecisionLogOptions(str(directory), **options), directory / 'spool', metrics.record_logged)
            ending.callback(log.close)
        server = PolicyServer(models, ServerOptions(), metrics, log=log)
        ending.callback(server.close, 0)
        rest = ending.enter_context(contextlib.closing(RestServer(server, ServerOptions())))
        yield rest.port, server.port, metrics


def count(metrics, result):
    return metrics.registry.get_sample_value('tflearn_outcomes_total', {'result': result})


def test_one_and_many_are_accepted_by_both_protocols(root, tmp_path):
    before = time.time()
    with serving(root, tmp_path) as (rest, port, metrics):
        one = {'event_id': 'visit-7', 'reward': 1, 'time': 1764140400.5}
        assert ask(rest, '/v1/outcomes', one) == (200, {'accepted': 1})
        many = [{'event_id': f'{i}', 'reward': i / 2, 'outcome_id': f'o{i}'} for i in range(3)]
        assert ask(rest, '/v1/outcomes', {'outcomes': many}) == (200, {'accepted': 3})
        with contextlib.closing(PolicyClient(f'localhost:{port}')) as client:
            client.record_outcomes([one, many[0]])
    first, *rest = lines_of(tmp_path, 'outcomes')
    assert first == one == rest[3] and len(rest) == 5
    assert [{key: line[key] for key in ('event_id', 'reward', 'outcome_id')} for line in rest[:3]] == many
    assert all(before <= line['time'] <= time.time() for line in rest[:3])
    assert count(metrics, 'logged') == 6 and lines_of(tmp_path) == []
    value = metrics.registry.get_sample_value
    assert value('tflearn_requests_total', {'method': 'RecordOutcomes', 'code': 'OK'}) == 2


REFUSED = [
    ({'event_id': 'a'}, 'got the outcome 0 with another reward; need a number between'),
    ({'event_id': 'a', 'reward': True}, 'got the outcome 0 with another reward'),
    ({'event_id': 'a', 'activated': 1}, 'got the outcome 0 with another activated; need true or false'),
    ({'event_id': 'a', 'activated': False}, 'got the outcome 0 with another reward'),
    ({'event_id': 'a', 'reward': 10**400}, 'got the outcome 0 with another reward'),
    ({'event_id': 'a', 'reward': float('nan')}, 'got the outcome 0 with another reward'),
    # A join reads float32: one more would end it.
    ({'event_id': 'a', 'reward': -1e39}, 'got the outcome 0 with another reward; need a number between -3.4e+38'),
    ({'event_id': '\ud800', 'reward': 1}, "got the outcome 0 with event_id='\\ud800'; need printable characters"),
    ({'event_id': 'a', 'reward': 1, 'outcome_id': 'b\n'}, 'got the outcome 0 with outcome_id='),
    ({'event_id': '', 'reward': 1}, 'got the outcome 0 with another event_id; need text of 1 to 208'),
    ({'event_id': 7, 'reward': 1}, 'got the outcome 0 with another event_id'),
    ({'event_id': 'a', 'reward': 1, 'time': '2025'}, 'got the outcome 0 with another time'),
    ({'event_id': 'a', 'rewards': 1}, 'got the outcome 0 with other keys; need {"event_id"'),
    ({'outcomes': [{'event_id': 'a', 'reward': 1}, 3]}, 'got the outcome 1 with other keys'),
    ({'outcomes': []}, 'got other "outcomes"; need a list of 1 to 10000'),
    ({}, 'got the outcome 0 with another event_id'),
    (
        {'event_id': 'a', 'reward': 1, 'time': 1764140400500},
        'got the outcome 0 with time=1764140400500.0, which',
    ),
    ({'event_id': 'a', 'reward': 1, 'time': 4e9}, 'got the outcome 0 with time=4000000000.0; need seconds since 1970'),
]


def test_the_commands_of_the_page_are_answered(root, tmp_path):
    with serving(root, tmp_path) as (rest, _, _):
        decided, deferred, *accepted = [
            curl(rest, words)
            for part in ('Event-Id', 'v1/outcomes')
            for words in docs_commands(part, without='Default-Action')
        ]
    assert decided['predictions'][0]['event_id'] == 'visit-7' and decided['predictions'][0]['probability'] == 1
    assert accepted == [{'accepted': 1}, {'accepted': 2}, {'accepted': 1}] and len(deferred['predictions']) == 1
    assert [line.get('activated') for line in lines_of(tmp_path)] == [None, 0]
    ids = [line['event_id'] for line in lines_of(tmp_path, 'outcomes')]
    assert ids == ['visit-7', 'visit-7', 'visit-8', 'visit-10']


def test_what_is_none_is_refused_whole(root, tmp_path):
    with serving(root, tmp_path) as (rest, port, _):
        for message, error in REFUSED:
            code, answer = ask(rest, '/v1/outcomes', message)
            assert code == 400 and answer['error'].startswith(error), answer
        assert ask(rest, '/v1/outcomes', data=b'[1]')[0] == 400 and ask(rest, '/v1/outcomes')[0] == 405
        with contextlib.closing(PolicyClient(f'localhost:{port}')) as client, pytest.raises(grpc.RpcError) as raised:
            client.record_outcomes([{'event_id': 'a'}])
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert lines_of(tmp_path, 'outcomes') == []


@pytest.mark.parametrize('number', ['NaN', '-Infinity', '1e999', '1e39'])
def test_an_observation_that_no_log_can_hold_is_no_decision(root, tmp_path, number):
    with serving(root, tmp_path) as (rest, _, _):
        body = json.dumps({'instances': [['X', 0.0, 0.0, 0.0]]}).replace('"X"', number)
        code, answer = ask(rest, PREDICT, data=body.encode())
        assert code == 400 and ('with NaN or infinity' in answer['error'] or number in answer['error'])
        code, answer = ask(rest, PREDICT, {'instances': [[1e38, 0.0, 0.0, 0.0]]})
        assert code == 200
    assert len(lines_of(tmp_path)) == 1


def test_a_deferred_decision_counts_once_it_is_activated(root, tmp_path):
    """Of ten decisions half are deferred, of which two are shown, by either protocol."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    with (
        serving(root, tmp_path / 'log') as (rest, port, _),
        contextlib.closing(PolicyClient(f'localhost:{port}')) as of,
    ):
        for i in range(10):
            deferred = {'Defer-Activation': 'true'} if i % 2 else {'Defer-Activation': 'false'} if i else {}
            message = {'instances': [[float(i), 0.0, 0.0, 0.0]]}
            assert ask(rest, PREDICT, message, {'Event-Id': f'v{i}', **deferred})[0] == 200
        code, answer = ask(rest, PREDICT, message, {'Defer-Activation': 'yes'})
        assert code == 400 and answer['error'] == "got defer-activation='yes'; need true or false"
        of.predict({'observation': OBSERVATION[:1]}, metadata={'event-id': 'v11', 'defer-activation': 'true'})
        clicks = [{'event_id': f'v{i}', 'reward': 1} for i in range(10)]
        assert ask(rest, '/v1/outcomes', {'outcomes': [*clicks, {'event_id': 'v1', 'activated': True}]})[0] == 200
        of.record_outcomes([{'event_id': 'v3', 'activated': True}])
    assert [line.get('activated') for line in lines_of(tmp_path / 'log')] == [None, 0] * 5 + [0]
    (tmp_path / 'map.toml').write_text(MAP)
    given = {'paths': [tmp_path / 'log'], 'settle_secs': 0.0, 'default_reward': 0.0}
    found = extensions.load('import').import_logs(
        [tmp_path / 'log'], tmp_path / 'map.toml', tmp_path / 'data', outcomes=given
    )
    episodes = EpisodeReader(Dataset([str(tmp_path / 'data')])).episodes()
    shown = {int(each['observation.x'][0, 0]): float(each['reward'][0]) for each in episodes}
    assert shown == dict.fromkeys((0, 1, 2, 3, 4, 6, 8), 1.0)
    assert 'decisions that were never activated: 4' in found.splitlines()


def test_an_event_id_that_is_not_ascii_joins(root, tmp_path):
    with serving(root, tmp_path) as (rest, _, _):
        message = {'instances': [[0.0] * 4], 'output_filter': ['event_id']}
        code, answer = ask(rest, PREDICT, message, headers={'Event-Id': 'visite-é'.encode().decode('latin-1')})
        assert (code, answer) == (200, {'predictions': ['visite-é']})
        assert ask(rest, '/v1/outcomes', {'event_id': 'visite-é', 'reward': 1}) == (200, {'accepted': 1})
        code, answer = ask(rest, PREDICT, message, headers={'Event-Id': 'visite-é'})  # as Latin-1
        assert code == 400 and answer['error'].startswith("got the event-id 'visite-\\udce9'; need printable")
    (decided,) = lines_of(tmp_path)
    assert decided['id'] == lines_of(tmp_path, 'outcomes')[0]['event_id'] == 'visite-é'


def test_a_server_without_a_log_accepts_none(root):
    with serving(root) as (rest, _, _):
        code, answer = ask(rest, '/v1/outcomes', {'event_id': 'a', 'reward': 1})
    assert code == 400 and answer['error'].endswith('need --decision_log')


def test_what_cannot_wait_is_not_accepted(root, tmp_path, monkeypatch):
    monkeypatch.setattr(decision_log, 'WAKE_SECS', 3600.0)
    monkeypatch.setattr(decision_log, 'MAX_BYTES', 100)
    outcome = {'event_id': 'a', 'reward': 1, 'time': 5}
    with serving(root, tmp_path) as (rest, _, metrics):
        assert ask(rest, '/v1/outcomes', outcome) == (200, {'accepted': 1})
        code, answer = ask(rest, '/v1/outcomes', {'outcomes': [outcome] * 3})
        assert code == 429 and answer['error'].startswith('got 3 outcomes, and too much waits already')
        assert count(metrics, 'dropped') == 3
    assert lines_of(tmp_path, 'outcomes') == [outcome]


def test_what_cannot_be_written_is_not_accepted(root, tmp_path):
    outcome = {'event_id': 'a', 'reward': 1, 'time': 5}
    with serving(root, tmp_path) as (rest, port, metrics):
        assert ask(rest, '/v1/outcomes', outcome) == (200, {'accepted': 1})
        with full_disk():
            two = {'outcomes': [{**outcome, 'event_id': 'b'}] * 2}
            code, answer = ask(rest, '/v1/outcomes', two)
            assert code == 429
            assert answer['error'].startswith('got 2 outcomes, and [Errno 27] File too large')
            with (
                contextlib.closing(PolicyClient(f'localhost:{port}')) as client,
                pytest.raises(grpc.RpcError) as raised,
            ):
                client.record_outcomes([outcome])
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask(rest, '/v1/outcomes', {**outcome, 'event_id': 'c'}) == (200, {'accepted': 1})
        assert count(metrics, 'logged') == 2 and count(metrics, 'dropped') == 3
        assert metrics.registry.get_sample_value('tflearn_side_task_failures') >= 2
    assert [line['event_id'] for line in lines_of(tmp_path, 'outcomes')] == ['a', 'c']


def test_decisions_and_outcomes_of_a_server_become_one_data_set(root, tmp_path):
    """By curl's means alone: ask, report what came of it, some of it twice, and join."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    rows = np.random.default_rng(1).choice(OBSERVATION, 12)
    with serving(root, tmp_path / 'log') as (rest, _, _):
        for i, row in enumerate(rows):
            message = {'instances': [row.tolist()], 'output_filter': ['action', 'event_id', 'probability']}
            code, answer = ask(rest, PREDICT, message, {'Event-Id': f'visit-{i}'})
            assert code == 200 and answer['predictions'][0]['event_id'] == f'visit-{i}'
        found = [{'event_id': f'visit-{i}', 'reward': i, 'time': time.time()} for i in range(10)]
        for each in (found[:6], found[4:], [{'event_id': 'none', 'reward': 1, 'time': time.time()}]):
            assert ask(rest, '/v1/outcomes', {'outcomes': each})[0] == 200
    (tmp_path / 'map.toml').write_text(MAP)
    for output in ('one', 'two'):
        flags = [f'--decisions={tmp_path}/log', f'--outcomes={tmp_path}/log', f'--columns={tmp_path}/map.toml']
        flags += [f'--output={tmp_path / output}', '--default_reward=0']
        environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
        ended = forks.run('scripts', 'data', 'join', *flags, env=environment, timeout=DEADLINE_SECS)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    one, two = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())} for name in ('one', 'two')
    )
    assert one == two
    counts = columns.read_metadata(tmp_path / 'one')['import']
    assert counts['double outcomes'] == 2 and counts['outcomes without a decision'] == 1
    assert counts['decisions without an outcome'] == 2


def test_no_window_closes_while_another_server_has_an_open_file(root, tmp_path):
    """Decisions of one server, whose outcomes are reported to another one; and a client whose clock is ahead."""
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    (tmp_path / 'map.toml').write_text(MAP)
    log = tmp_path / 'log'

    def join(output):
        flags = [f'--decisions={log}', f'--outcomes={log}', f'--columns={tmp_path}/map.toml', '--default_reward=0']
        flags += [f'--output={tmp_path / output}', '--window_secs=0.3', '--settle_secs=0.1']
        environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
        return forks.run('scripts', 'data', 'join', *flags, env=environment, timeout=DEADLINE_SECS)

    with serving(root, log) as (other, _, _):
        assert ask(other, '/v1/outcomes', {'event_id': 'none', 'reward': 0})[0] == 200
        with serving(root, log) as (rest, _, _):
            for i in range(8):
                headers = {'Event-Id': f'visit-{i}'}
                assert ask(rest, PREDICT, {'instances': [[float(i), 0, 0, 0]]}, headers)[0] == 200
                assert ask(other, '/v1/outcomes', {'event_id': f'visit-{i}', 'reward': 1})[0] == 200
            ahead = {'event_id': 'visit-7', 'reward': 1, 'time': time.time() + 3600}
            assert ask(rest, '/v1/outcomes', ahead)[0] == 400
            threading.Event().wait(0.6)  # the windows end
            last = {'event_id': 'none', 'reward': 0, 'time': time.time() + 200}  # within what clocks may differ
            assert ask(rest, '/v1/outcomes', last)[0] == 200
            assert ask(rest, PREDICT, {'instances': [[9.0, 0, 0, 0]]})[0] == 200
        ended = join('early')
        assert ended.returncode == 2 and '(9 decisions whose window is open' in ended.stderr
        assert 'the begin of' in ended.stderr and '.outcomes-' in ended.stderr
        threading.Event().wait(0.5)
        assert ask(other, '/v1/outcomes', {'event_id': 'none', 'reward': 0})[0] == 200
    ended = join('late')
    assert ended.returncode == 0, ended.stderr
    episodes = EpisodeReader(Dataset([str(tmp_path / 'late')])).episodes()
    found = {float(each['observation.x'][0, 0]): float(each['reward'][0]) for each in episodes}
    assert found == {float(i): 1.0 for i in range(8)}


SHOP = """
id = 'visit'
time = 'shown_at'
cluster = 'visitor'
propensity = 'p'
action = {column = 'banner', kind = 'category'}
reward_range = [0, 1]
outcomes = {id = 'of_visit', reward = 'clicks', time = 'at'}

[observation]
hour = {column = 'hour_of_day', kind = 'category'}
model = {kind = 'category'}
age = {missing = 30}
place = {columns = ['x', 'y']}
tags = {kind = 'category', length = 2}
allowed = {kind = 'mask'}
"""
BANNERS, HOURS = ['free', 'new', 'sale'], [9, 14, 22]


def shop(folder):
    """Joins two CSV files, and exports a policy with the data's vocabularies: its action is the hour's place."""
    lines, clicks = ['visit,shown_at,hour_of_day,model,age,x,y,tags,allowed,banner,p,visitor'], ['of_visit,at,clicks']
    for i in range(6):
        of = BANNERS[i % 3]
        lines.append(f'v{i},{1000 + i},{HOURS[i % 3]},{("14", "m2")[i % 2]},{20 + i},1,2,{i} 3,{of} new,{of},0.5,anna')
        clicks.append(f'v{i},{1001 + i},{i % 2}')
    (folder / 'decisions.csv').write_text('\n'.join(lines) + '\n')
    (folder / 'clicks.csv').write_text('\n'.join(clicks) + '\n')
    (folder / 'map.toml').write_text(SHOP)
    data = join(folder, 'first', [folder / 'decisions.csv'], [folder / 'clicks.csv'])
    module = tf.Module()
    inputs = {'hour': [None], 'model': [None], 'age': [None], 'place': [None, 2], 'tags': [None, 2]}
    floats = {'age', 'place'}
    specs = [
        tf.TensorSpec(shape, tf.float32 if name in floats else tf.int64, f'observation_{name}')
        for name, shape in inputs.items()
    ]
    specs.append(tf.TensorSpec([None, 3], tf.int8, 'observation_allowed'))
    module.act = tf.function(lambda hour, *others: {'action': tf.maximum(hour - 1, 0)}, specs)
    # The signature of a distribution says that its probabilities are known.
    module.distribution = tf.function(lambda *given: {'distribution_loc': module.act(*given)['action']}, specs)
    path = folder / 'policies' / 'greedy_policy' / '1'
    signatures = {'serving_default': module.act, 'distribution': module.distribution}
    tf.saved_model.save(module, str(path), signatures=signatures)
    action = {'dtype': 'int64', 'shape': [], 'minimum': 0, 'maximum': 2}
    words = json.loads((data / 'vocabularies.json').read_text())
    about = {'train_step': 1, 'specs': {'action': action}, 'action_mask': 'allowed', 'vocabularies': words}
    (path / 'metadata.json').write_text(json.dumps(about))
    return data, words


def join(folder, output, decisions, outcomes, mapped='map.toml', **options):
    given = {'paths': outcomes, 'settle_secs': 0.0, 'default_reward': 0.0}
    extensions.load('import').import_logs(decisions, folder / mapped, folder / output, outcomes=given, **options)
    return folder / output


def test_one_map_reads_the_products_files_and_the_servers_log(tmp_path):
    pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
    data, words = shop(tmp_path)
    rows = [
        {'hour': '9', 'model': '14', 'age': 20, 'place': [1, 2], 'tags': ['4', '3'], 'allowed': [1, 1, 0]},
        {'hour': '22', 'model': 'm9', 'age': 21, 'place': [3, 4], 'tags': ['é', None], 'allowed': [0, 1, 1]},
    ]
    asked = {'instances': [{f'observation_{name}': value for name, value in row.items()} for row in rows]}
    with serving(tmp_path / 'policies', tmp_path / 'log') as (rest, _, _):
        code, answer = ask(rest, PREDICT, asked, {'Event-Id': 'w', 'Cluster': 'anna'})
        assert (code, answer) == (200, {'predictions': [0, 2], 'texts': {'action': ['free', 'sale']}})
        assert ask(rest, '/v1/outcomes', {'event_id': 'w-1', 'reward': 1})[0] == 200
    logged = lines_of(tmp_path / 'log')
    assert [(line['action'], line['observation_hour'], line['mask']) for line in logged] == [
        ('free', '9', ['free', 'new']),
        ('sale', '22', ['new', 'sale']),
    ]
    assert [(line['observation_model'], line['observation_tags'], line['cluster']) for line in logged] == [
        ('14', ['4', '3'], 'anna'),
        ('m9', ['é', ''], 'anna'),
    ]
    log = [tmp_path / 'log']
    served = join(tmp_path, 'served', log, log, vocabularies=tmp_path / 'policies' / 'greedy_policy')
    assert json.loads((served / 'vocabularies.json').read_text()) == words
    counts = columns.read_metadata(served)['import']
    named = ('unknown: observation.model', 'unknown: observation.tags', 'missing: observation.tags')
    assert [counts[name] for name in named] == [1, 1, 1]
    assert columns.read_columns(served) == columns.read_columns(data)
    episodes = {float(each['reward'][0]): each for each in EpisodeReader(Dataset([str(served)])).episodes()}
    found = {name: [episodes[reward][f'observation.{name}'][0].tolist() for reward in (0, 1)] for name in rows[0]}
    assert found == {
        'hour': [1, 3],
        'model': [1, 0],
        'age': [20, 21],
        'place': [[1, 2], [3, 4]],
        'tags': [[5, 4], [0, 0]],
        'allowed': [[1, 1, 0], [0, 1, 1]],
    }
    assert [episodes[reward]['action'][0] for reward in (0, 1)] == [0, 2]
    both = [EpisodeReader(Dataset([str(path)])).episodes() for path in (data, served)]
    assert len({each['policy_info.cluster'][0] for episodes in both for each in episodes}) == 1

    # What cannot be read so is refused by name: a log of an older server, its places by this map and texts as integers.
    (old,) = (tmp_path / 'log').glob('decisions-*')
    for line, place in zip(logged, (1, 3), strict=True):
        line['observation_hour'] = place
    for name, lines in (('numbers', logged), ('mixed', [json.loads(old.read_text().splitlines()[0]), *logged])):
        (tmp_path / f'{name}.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
        with pytest.raises(UserError, match='got observation_hour = 1 in .*need the text that servers log'):
            join(tmp_path, name, [tmp_path / f'{name}.jsonl'], log, vocabularies=data)
    with pytest.raises(UserError, match=r'and .*decisions.csv, which is none; need one kind; .*--vocabularies of the'):
        join(tmp_path, 'both', [*log, tmp_path / 'decisions.csv'], log)
    integers = SHOP.replace("'hour_of_day', kind = 'category'", "'observation_hour', kind = 'integer', high = 24")
    (tmp_path / 'integers.toml').write_text(integers)
    with pytest.raises(UserError, match="got observation_hour = '9' in .*need a number; .*is kind = 'category'"):
        join(tmp_path, 'integers', log, log, 'integers.toml')
    # And so is one data set that lacks a vocabulary of another.
    (served / 'vocabularies.json').write_text('{}')
    with pytest.raises(UserError, match=r'got .*first with a vocabulary of action, and .*served without: .*need one v'):
        metadata.vocabularies([data, served])
