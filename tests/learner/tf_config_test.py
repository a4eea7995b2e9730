import json

import pytest

from tflearn.core import strategies

CLUSTER = {'worker': ['a:1', 'b:2']}
TASK = {'type': 'worker', 'index': 1}


def test_reads_workers():
    assert strategies.read_tf_config(json.dumps({'cluster': CLUSTER, 'task': TASK})) == (('a:1', 'b:2'), 1)


def test_chief_comes_first():
    cluster = {'worker': ['a:1', 'b:2'], 'chief': ['c:3']}
    addresses = ('c:3', 'a:1', 'b:2')
    read = lambda task: strategies.read_tf_config(json.dumps({'cluster': cluster, 'task': task}))  # noqa: E731
    assert read({'type': 'chief', 'index': 0}) == (addresses, 0)
    assert read(TASK) == (addresses, 2)


WRONG = {
    'not set': (None, 'got no TF_CONFIG in the environment'),
    'not JSON': ('{', 'which is not JSON'),
    'brackets without end': ('[' * 5000, 'which is not JSON'),
    'a number of 5000 digits': ('1' * 5000, 'which is not JSON'),
    'a list': ([], "without the objects 'cluster' and 'task'"),
    'no cluster': ({'task': TASK}, "without the objects 'cluster' and 'task'"),
    'no task': ({'cluster': CLUSTER}, "without the objects 'cluster' and 'task'"),
    'another job': ({'cluster': CLUSTER, 'task': {'type': 'chief', 'index': 0}}, "task type 'chief'.*has worker"),
    'a parameter server': ({'cluster': {**CLUSTER, 'ps': ['c:3']}, 'task': TASK}, r'the job\(s\) ps'),
    'no index': ({'cluster': CLUSTER, 'task': {'type': 'worker'}}, 'task index None'),
    'index out of range': ({'cluster': CLUSTER, 'task': {'type': 'worker', 'index': 2}}, 'task index 2.*has 2 of type'),
    'index as text': ({'cluster': CLUSTER, 'task': {'type': 'worker', 'index': '1'}}, "task index '1'"),
    'no port': ({'cluster': {'worker': ['a', 'b:2']}, 'task': TASK}, "the address 'a' .*not host:port"),
    'no such port': ({'cluster': {'worker': ['a:1', 'b:99999']}, 'task': TASK}, "the address 'b:99999'"),
    'a port that is no number': ({'cluster': {'worker': ['a:1', 'b:²']}, 'task': TASK}, "the address 'b:²'"),
    'a port of 5000 digits': ({'cluster': {'worker': ['a:1', 'b:' + '1' * 5000]}, 'task': TASK}, "the address 'b:111"),
    'twice the same': ({'cluster': {'worker': ['a:1', 'a:1']}, 'task': TASK}, 'the same address twice'),
    'no addresses': ({'cluster': {'worker': []}, 'task': TASK}, r"\[\] as the addresses of 'worker'"),
    'two chiefs': ({'cluster': {**CLUSTER, 'chief': ['c:3', 'd:4']}, 'task': TASK}, '2 chiefs'),
}


@pytest.mark.parametrize(('value', 'message'), WRONG.values(), ids=WRONG)
def test_names_the_mistake(value, message):
    text = value if value is None or isinstance(value, str) else json.dumps(value)
    with pytest.raises(ValueError, match=f'{message}.*; need e.g. .*; set it on each worker'):
        strategies.read_tf_config(text)
