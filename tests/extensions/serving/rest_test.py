"""A real server answers each form of request of TensorFlow Serving's REST page, to a client that is only urllib."""

import base64
import collections
import contextlib
import json
import random
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import tensorflow as tf

from tests.conftest import SEED
from tests.extensions.serving import clients_test
from tests.testing import certificates, docs_blocks, example_policies, served_policies
from tflearn.extensions.serving import rest
from tflearn.extensions.serving.client import PolicyClient
from tflearn.extensions.serving.rest import RestServer
from tflearn.extensions.serving.served_version import BatchOptions
from tflearn.net.server_options import ServerOptions
from tflearn.net.tls import TlsFiles
from tflearn.policies import states
from tflearn.policies.exporter import PolicyExporter

DEADLINE_SECS = 60.0
ROWS = [[1, 0, 0, 0], [-1, 0, 0, 0]]
NAME = 'greedy_policy'
STATUS = {'state': 'AVAILABLE', 'status': {'error_code': 'OK', 'error_message': ''}}


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """Version 7 of a policy, and models of several inputs, of text, and of a policy with memory."""
    root = tmp_path_factory.mktemp('policies')
    served_policies.Publisher(root).publish(7)
    PolicyExporter(example_policies.recurrent(), root / 'recurrent').export(3, {})
    module = tf.Module()
    module.several = tf.function(
        lambda tag, signal, flag: {'text': tag, 'sum': tf.reduce_sum(signal, 1), 'image_bytes': tag, 'flag': flag},
        [
            tf.TensorSpec([None], tf.string, 'tag'),
            tf.TensorSpec([None, 2], tf.float32, 'signal'),
            tf.TensorSpec([None], tf.bool, 'flag'),
        ],
    )
    module.length = tf.function(
        lambda image: {'length': tf.strings.length(image)}, [tf.TensorSpec([None], tf.string, 'image')]
    )
    module.large = tf.function(lambda x: {'y': x}, [tf.TensorSpec([None], tf.uint64, 'x')])
    (root / 'several').mkdir()
    path = root / 'several' / '1'
    tf.saved_model.save(
        module,
        str(path),
        signatures={'serving_default': module.several, 'length': module.length, 'large': module.large},
    )
    (path / 'metadata.json').write_text('{"train_step": 1}')
    return root


@contextlib.contextmanager
def serving(root, **options):
    """Yields a server of both protocols."""
    with served_policies.serving(root, BatchOptions(), **options) as (server, models):
        limits = {key: value for key, value in options.items() if key in ('max_request_bytes', 'tls')}
        with contextlib.closing(RestServer(server, ServerOptions(**limits))) as served:
            yield served, server, models


@pytest.fixture(scope='module')
def port(root):
    with serving(root, max_request_bytes=100_000) as (served, _, _):
        yield served.port


def ask(port, path, message=None, headers=(), data=None, context=None):
    """Returns the status and the JSON of an answer; a GET if there is no message."""
    data = json.dumps(message).encode() if message is not None else data
    scheme = 'https' if context else 'http'
    request = urllib.request.Request(f'{scheme}://localhost:{port}{path}', data, dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECS, context=context) as answer:
            assert answer.headers['Content-Type'] == 'application/json'
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize('part', ['', '/versions/7'])
def test_rows_and_columns_of_one_input(port, part):
    path = f'/v1/models/{NAME}{part}:predict'
    assert ask(port, path, {'instances': ROWS}) == (200, {'predictions': [1, 0]})
    assert ask(port, path, {'instances': [{'observation': row} for row in ROWS]}) == (200, {'predictions': [1, 0]})
    assert ask(port, path, {'inputs': ROWS}) == (200, {'outputs': [1, 0]})
    named = {'signature_name': 'serving_default', 'inputs': {'observation': ROWS}, 'context': 'ignored'}
    assert ask(port, path, named) == (200, {'outputs': [1, 0]})


def test_rows_and_columns_of_several_inputs_and_binary_values(port):
    path, image = '/v1/models/several:predict', base64.b64encode(b'\xff\x00').decode()
    rows = [{'tag': 'foo', 'signal': [0.1, 0.1], 'flag': True}, {'tag': 'bär', 'signal': [-1, 2.5], 'flag': False}]
    tags = [{'b64': base64.b64encode(row['tag'].encode()).decode()} for row in rows]
    need = [
        {'text': 'foo', 'sum': 0.2, 'image_bytes': tags[0], 'flag': True},
        {'text': 'bär', 'sum': 1.5, 'image_bytes': tags[1], 'flag': False},
    ]
    assert ask(port, path, {'instances': rows}) == (200, {'predictions': need})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert ask(port, path, {'inputs': columns | {'tag': tags}}) == (
        200, {'outputs': {name: [row[name] for row in need] for name in need[0]}}
    )  # fmt: skip
    one = {'signature_name': 'length', 'instances': [{'b64': image}, 'four', {'b64': image}]}
    assert ask(port, path, one) == (200, {'predictions': [2, 4, 2]})
    large = [2**64 - 1, 0]
    assert ask(port, path, {'signature_name': 'large', 'inputs': large}) == (200, {'outputs': large})


def test_numbers_that_are_not_finite_are_taken_if_they_are_meant(root, tmp_path):
    with serving(root, allow_nonfinite=True) as (served, _, _):
        inputs = {'tag': ['a'], 'signal': [[np.nan, np.inf]], 'flag': [True]}
        code, answer = ask(served.port, '/v1/models/several:predict', {'inputs': inputs, 'output_filter': ['sum']})
        assert code == 200 and np.isnan(answer['outputs'][0])
    # A null is what it was in the data.
    about = {'missing': {'observation': np.nan}}
    PolicyExporter(example_policies.greedy(), tmp_path / NAME).export(3, about)
    with serving(tmp_path) as (served, _, _):
        assert ask(served.port, f'/v1/models/{NAME}:predict', {'instances': [[None, 0, 0, 0]]})[0] == 200


def test_a_policy_with_memory_takes_its_state_from_the_answer(port):
    path = '/v1/models/recurrent:predict'
    code, answer = ask(port, path, {'signature_name': 'get_initial_state', 'inputs': {'batch_size': 2}})
    assert code == 200
    state = answer['outputs']
    assert sorted(state) == ['policy_state_0', 'policy_state_1']
    code, answer = ask(port, path, {'inputs': {'observation': np.ones((2, 4)).tolist(), **state}})
    assert code == 200 and sorted(answer['outputs']) == ['action', *sorted(state)]
    code, answer = ask(port, path, {'signature_name': 'get_initial_state', 'instances': [2]})
    assert code == 400 and answer['error'].startswith('got "instances" for get_initial_state')


def test_status_and_metadata(port):
    assert ask(port, f'/v1/models/{NAME}') == (200, {'model_version_status': [{'version': '7', **STATUS}]})
    assert ask(port, f'/v1/models/{NAME}/versions/7')[1]['model_version_status'][0]['state'] == 'AVAILABLE'
    for part in ('', '/versions/7'):
        code, answer = ask(port, f'/v1/models/{NAME}{part}/metadata')
        assert code == 200 and answer['model_spec'] == {'name': NAME, 'signature_name': '', 'version': '7'}
        assert answer['metadata'].keys() == {'signature_def'}, 'as TensorFlow Serving answers'
        described = answer['metadata']['signature_def']['signature_def']['serving_default']
        observation = described['inputs']['observation']
        assert observation['dtype'] == 'DT_FLOAT' and observation['tensor_shape'] == {
            'dim': [{'size': '-1', 'name': ''}, {'size': '4', 'name': ''}],
            'unknown_rank': False,
        }
        assert described['method_name'] == 'tensorflow/serving/predict' and list(described['outputs']) == ['action']


def test_vocabularies_are_in_the_metadata(tmp_path):
    words = {'action': ['cup', 'pot'], 'observation.country': ['de', 'fr']}
    PolicyExporter(example_policies.greedy(), tmp_path / NAME).export(3, {'vocabularies': words})
    with serving(tmp_path) as (served, server, _):
        assert ask(served.port, f'/v1/models/{NAME}/metadata')[1]['metadata']['vocabularies'] == words
        # The numbers are as TensorFlow Serving has them; the texts stand beside them.
        for form, name in (('instances', 'predictions'), ('inputs', 'outputs')):
            code, answer = ask(served.port, f'/v1/models/{NAME}:predict', {form: [[0.1, 0.2, 0.3, 0.4]] * 2})
            assert code == 200 and answer['texts'] == {'action': [words['action'][i] for i in answer[name]]}
        with contextlib.closing(PolicyClient(f'localhost:{server.port}')) as client:
            assert client.vocabularies() == words


def test_texts_and_nulls_are_what_they_were_in_the_log(tmp_path):
    module = tf.Module()
    module.act = tf.function(
        lambda country, age, seen: {'country': country, 'age': age, 'seen': seen},
        [
            tf.TensorSpec([None], tf.int64, 'observation_home_country'),
            tf.TensorSpec([None], tf.float32, 'observation_age'),
            tf.TensorSpec([None, 2], tf.int32, 'observation_seen'),
        ],
    )
    path = tmp_path / NAME / '1'
    tf.saved_model.save(module, str(path), signatures={'serving_default': module.act})
    words = {
        'action': ['cup', 'pot'],
        'observation.home-country': ['de', 'fr', 'true'],
        'observation.seen': ['12', 'cup', 'pot'],
    }
    about = {'train_step': 1, 'vocabularies': words, 'missing': {'observation.age': -0.5}}
    (path / 'metadata.json').write_text(json.dumps(about))

    def row(country, age, seen):
        return {'observation_home_country': country, 'observation_age': age, 'observation_seen': seen}

    rows = [row('fr', None, ['pot', None]), row('xx', 34, ['jug', '12']), row(None, 1.5, [None, None])]
    need = [
        {'country': 2, 'age': -0.5, 'seen': [3, 0]},
        {'country': 0, 'age': 34, 'seen': [0, 1]},
        {'country': 0, 'age': 1.5, 'seen': [0, 0]},
    ]
    with serving(tmp_path) as (served, _, _):
        assert ask(served.port, f'/v1/models/{NAME}:predict', {'instances': rows}) == (200, {'predictions': need})
        columns = {name: [each[name] for each in rows] for name in rows[0]}
        code, answer = ask(served.port, f'/v1/models/{NAME}:predict', {'inputs': columns})
        assert (code, answer['outputs']['country'], answer['outputs']['age']) == (200, [2, 0, 0], [-0.5, 34, 1.5])
        code, answer = ask(served.port, f'/v1/models/{NAME}:predict', {'instances': [row('de', 'old', ['cup', 'lid'])]})
        assert (code, answer) == (400, {'error': 'got a text in observation_age; need float32'})
        for seen in ([12, 1], [12, None]):
            code, answer = ask(served.port, f'/v1/models/{NAME}:predict', {'instances': [row('de', 1, seen)]})
            assert code == 400 and 'got 12 in observation_seen, a category whose texts are' in answer['error']
            assert answer['error'].endswith('need a text, such as "12", "cup", "pot"')
        flags = [row(flag, 1, ['cup', 'lid']) for flag in (True, False)]
        code, answer = ask(served.port, f'/v1/models/{NAME}:predict', {'instances': flags})
        assert (code, [each['country'] for each in answer['predictions']]) == (200, [3, 0])
        # A column of true and false was one of 1 and 0, by itself and beside numbers and nulls.
        for given, ages in (([True, False], [1, 0]), ([True, 7.5], [1, 7.5]), ([None, True], [-0.5, 1])):
            ask_for = {'instances': [row('de', age, ['cup', 'lid']) for age in given]}
            code, answer = ask(served.port, f'/v1/models/{NAME}:predict', ask_for)
            assert (code, [each['age'] for each in answer['predictions']]) == (200, ages)


def test_labels_name_versions(tmp_path):
    publisher = served_policies.Publisher(tmp_path)
    for step, state in ((1, 'stable'), (2, 'canary')):
        publisher.publish(step)
        states.promote(publisher.directory, step, state, 'a test', **({'share': 0.5} if state == 'canary' else {}))
    with serving(tmp_path) as (served, _, _):
        for label, version, actions in (('stable', '1', [1, 0]), ('canary', '2', [0, 1])):
            path = f'/v1/models/{NAME}/labels/{label}'
            assert ask(served.port, f'{path}:predict', {'instances': ROWS}) == (200, {'predictions': actions})
            assert ask(served.port, path) == (200, {'model_version_status': [{'version': version, **STATUS}]})
            assert ask(served.port, f'{path}/metadata')[1]['model_spec']['version'] == version


STEP = {'step_type': [1], 'reward': [np.nan], 'discount': [1], 'observation': ROWS[:1]}
REFUSED = [
    (404, 'greedy', {'instances': ROWS}, "got the model name 'greedy'; need one of ["),
    (404, f'{NAME}/versions/8', {'instances': ROWS}, 'got a request for version 8 of'),
    (400, f'{NAME}/versions/x', {'instances': ROWS}, "got the version 'x'; need a number"),
    (404, f'{NAME}/labels/stable', {'instances': ROWS}, "got the label 'stable' of"),
    (400, NAME, {}, 'got neither; need either "instances" or "inputs"'),
    (400, NAME, {'instances': ROWS, 'inputs': ROWS}, 'got instances and inputs; need either'),
    (400, NAME, {'instances': []}, 'got other "instances"; need a list'),
    (400, NAME, {'instances': [ROWS[0], {'observation': ROWS[0]}]}, 'got "instances" of several kinds'),
    (400, NAME, {'instances': ROWS, 'signature_name': 'act'}, "got signature_name='act'; need one of ["),
    (400, NAME, {'instances': ROWS, 'signature_name': 3}, 'got another signature_name'),
    (400, NAME, {'instances': ROWS, 'output_filter': ['x']}, "got output_filter ['x']; need some of"),
    (400, NAME, {'inputs': {'x': ROWS}}, "got the input 'x'; need one of ['observation']"),
    (400, NAME, {'inputs': {}}, 'got no input observation'),
    (400, NAME, {'instances': [[1, 2], [3]]}, 'got instances with lists of several sizes; need a tensor'),
    (400, NAME, {'instances': [[1, 0, 0]]}, 'got observation of shape [1, 3]; need [any, 4]'),
    (400, NAME, {'instances': [['a'] * 4]}, 'got a text in observation; need float32'),
    (400, NAME, {'instances': [[1, None, 0, 0]]}, 'got null in observation; need float32'),
    (400, NAME, {'instances': [[1, None, 'a', 0]]}, 'got instances with NoneType, int, str; need numbers'),
    (400, NAME, {'instances': [ROWS[0], [1, np.nan, 0, 0]]}, 'got row 1 of observation with NaN or infinity, for'),
    (400, NAME, {'instances': [[1, -1e39, 0, 0]]}, 'got row 0 of observation with NaN or infinity'),
    (400, NAME, {'signature_name': 'action', 'inputs': STEP}, 'got row 0 of reward with NaN or infinity'),
    (400, NAME, {'instances': [None]}, 'got observation of shape [1]; need [any, 4]'),
    (400, 'several', {'inputs': [None], 'signature_name': 'length'}, 'got null in image; need string'),
    (400, NAME, {'instances': [[10**30, 0, 0, 0]]}, 'got instances with a number that is too large'),
    (400, NAME, {'instances': [[0, 0, 0, 0]] * 1025}, 'got a batch of 1025; need 1 to 1024 rows'),
    (400, 'several', {'instances': ROWS}, 'got "instances" without names; need those of ['),
    (400, 'several', {'inputs': [1], 'signature_name': 'length'}, 'got image of int64; need string'),
    (400, 'several', {'inputs': [{'b64': '?'}], 'signature_name': 'length'}, "got inputs with '?' ("),
    (400, 'several', {'inputs': [-1], 'signature_name': 'large'}, 'got x with values from -1 to -1; need uint64'),
    (400, 'several', {'inputs': [1.0], 'signature_name': 'large'}, 'got x of float64; need uint64'),
    (413, NAME, {'instances': [[0.25, 0.25, 0.25, 0.25]] * 9000}, 'got a request of '),
]  # fmt: skip


@pytest.mark.parametrize(('code', 'path', 'message', 'error'), REFUSED)
def test_invalid_requests_get_a_status_and_a_reason(port, code, path, message, error):
    found, answer = ask(port, f'/v1/models/{path}:predict', message)
    assert (found, list(answer)) == (code, ['error']) and answer['error'].startswith(error)


def test_what_is_no_request_is_refused(port):
    for data in (b'', b'{', b'[]', b'\xff', b'[' * 9999):
        assert ask(port, f'/v1/models/{NAME}:predict', data=data)[0] == 400
    for path, code in (('/v1/models', 404), (f'/v1/models/{NAME}:predict', 405), (f'/v1/models/{NAME}/x', 404)):
        assert ask(port, path)[0] == code
    assert ask(port, f'/v1/models/{NAME}/versions/8/metadata')[0] == ask(port, '/v1/models/x')[0] == 404


def test_many_lists_in_few_bytes_are_refused(root):
    with serving(root) as (served, _, _):
        code, answer = ask(served.port, f'/v1/models/{NAME}:predict', data=b'[' + b'[],' * 131_072 + b'1]')
    assert (code, answer) == (400, {'error': 'got 131073 lists and objects; need at most 131072'})


def test_both_protocols_share_versions_metrics_and_batches(root):
    with serving(root) as (served, server, models), served_policies.held(models) as (started, resume):
        found, client = [], PolicyClient(f'localhost:{server.port}')
        observation = {'observation': np.array(ROWS, np.float32)}
        asked = [
            threading.Thread(target=lambda: found.append(client.predict(observation)[0]['action'].tolist())),
            *[
                threading.Thread(
                    target=lambda: found.append(
                        ask(served.port, f'/v1/models/{NAME}:predict', {'inputs': ROWS})[1]['outputs']
                    )
                )
                for _ in range(5)
            ],
        ]
        asked[0].start()
        assert started.wait(DEADLINE_SECS)
        computed = []
        signature = models.get(NAME).get().signature('serving_default')
        run = signature.run
        signature.run = lambda inputs, **kind: (computed.append(len(inputs['observation'])), run(inputs, **kind))[1]
        for each in asked[1:]:
            each.start()
        end = time.monotonic() + DEADLINE_SECS
        while sum(queue.rows for queue in server._requests._waiting.values()) < 10 and time.monotonic() < end:
            threading.Event().wait(0.01)
        resume.set()
        for each in asked:
            each.join(DEADLINE_SECS)
        client.close()
        assert found == [[1, 0]] * 6 and computed == [10], 'the five that waited are one batch'
        assert ask(served.port, f'/v1/models/{NAME}:predict', {'inputs': []})[0] == 400
        value = server._metrics.registry.get_sample_value
        assert value('tflearn_requests_total', {'method': 'Predict', 'code': 'OK'}) == 6
        assert value('tflearn_requests_total', {'method': 'Predict', 'code': 'INVALID_ARGUMENT'}) == 1
        assert value('tflearn_request_rows_sum', {'model': NAME}) == 12


def test_limits_and_deadlines_are_those_of_grpc(root, monkeypatch):
    path, message = f'/v1/models/{NAME}:predict', {'instances': ROWS}
    with (
        serving(root, max_concurrent_requests=1) as (served, _, models),
        served_policies.held(models) as (started, resume),
    ):
        monkeypatch.setattr(rest, '_SECS', 0.5)
        assert ask(served.port, path, message)[0] == 504
        assert started.is_set()
        resume.set()
    with serving(root, max_concurrent_requests=1) as (served, _, models):
        monkeypatch.setattr(rest, '_SECS', DEADLINE_SECS)
        with served_policies.held(models) as (started, resume):
            first = []
            waiting = threading.Thread(target=lambda: first.append(ask(served.port, path, message)))
            waiting.start()
            assert started.wait(DEADLINE_SECS)
            assert ask(served.port, path, message)[0] == 429
            monkeypatch.setattr(rest, '_MAX_BYTES', 10)
            code, answer = ask(served.port, path, message)
            assert code == 429 and answer['error'].startswith('got a body of ')
            resume.set()
            waiting.join(DEADLINE_SECS)
        assert first == [(200, {'predictions': [1, 0]})]


def test_no_version_yet_is_unavailable(tmp_path):
    with serving(tmp_path) as (served, _, _):
        assert ask(served.port, f'/v1/models/{NAME}:predict', {'instances': ROWS})[0] == 503


def test_clients_are_known_by_their_tokens_and_certificates(root, tmp_path):
    authority = certificates.make_authority(tmp_path, 'ca')
    pairs = {
        name: certificates.signed(tmp_path, name, authority, host)
        for name, host in (('server', 'localhost'), ('robot', 'robot.example'), ('other', 'other.example'))
    }
    token, key = clients_test.TOKENS['screen'], pairs['server'][0]
    file = clients_test.write(
        tmp_path / 'clients.json',
        robot={'certificate': 'robot.example', 'policies': []},
        screen=clients_test.by_token('screen', policies=[NAME]),
    )
    tls = TlsFiles(pairs['server'][1], key, authority[1])
    with (
        clients_test.serving(root, file, tls=tls) as (server, _, metrics),
        contextlib.closing(RestServer(server, ServerOptions(tls=tls))) as served,
    ):
        found = {}
        for name, headers in (('robot', {}), ('other', {}), ('other', {'Authorization': f'Bearer {token}'})):
            context = ssl.create_default_context(cafile=authority[1])
            context.load_cert_chain(pairs[name][1], pairs[name][0])
            asked = ask(served.port, f'/v1/models/{NAME}:predict', {'instances': ROWS}, headers, context=context)
            found[name, bool(headers)] = asked[0]
        assert found == {('robot', False): 403, ('other', False): 401, ('other', True): 200}
        assert clients_test.refused(metrics, '', 'unknown') == 1


def docs_commands(part, without='nothing'):
    """The commands of the page about serving with a word."""
    found = [words for place, words in docs_blocks.COMMANDS if place.startswith('serving.md') and words[0] == 'curl']
    return [words for words in found if part in str(words) and without not in str(words)]


def curl(port, words):
    command = [word.replace('localhost:8501', f'localhost:{port}') for word in words]
    return json.loads(subprocess.run([*command, '-s'], capture_output=True, timeout=DEADLINE_SECS).stdout)


def test_the_commands_of_the_page_are_answered(port):
    commands = docs_commands('v1/models', without='Event-Id')
    assert len(commands) == 4
    answers = [curl(port, words) for words in commands]
    assert [next(iter(each)) for each in answers] == ['predictions', 'outputs', 'model_version_status', 'model_spec']
    assert len(answers[0]['predictions']) == 2


def test_random_requests_are_answered(port):
    """With each something may be wrong; no answer is an error of the server itself."""
    random_, codes = random.Random(SEED), collections.Counter()
    leaves = [
        0,
        1.5,
        -1,
        True,
        None,
        'a',
        {'b64': 'YQ=='},
        {'b64': 1},
        {'x': 1},
        1e39,
        10**20,
        [],
        {},
        '\ud800',
        [[[0]]],
    ]
    names = ['instances', 'inputs', 'signature_name', 'output_filter', 'x']
    values = [
        ROWS,
        [{'observation': row} for row in ROWS],
        {'observation': ROWS},
        {'tag': ['a']},
        'serving_default',
        'x',
    ]

    def value(depth=0):
        kind = random_.random()
        if kind < 0.3:
            return random_.choice(values)
        if kind < 0.7 or depth > 3:
            return random_.choice(leaves)
        return [value(depth + 1) for _ in range(random_.randrange(4))]

    for _ in range(300):
        message = {random_.choice(names): value() for _ in range(random_.choice([1, 1, 2, 3]))}
        model = random_.choice([NAME, NAME, 'several', 'recurrent', 'x'])
        part = random_.choice(['', '', '/versions/7', '/versions/99999999999999999999', '/labels/a'])
        code, answer = ask(port, f'/v1/models/{model}{part}:predict', message)
        assert code == 200 or answer['error'], answer
        codes[code] += 1
    assert set(codes) == {200, 400, 404}, codes
    assert ask(port, f'/v1/models/{NAME}:predict', {'instances': ROWS})[0] == 200
