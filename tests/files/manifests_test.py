import hashlib
import json
import threading

import pytest

from tflearn.core.errors import UserValueError
from tflearn.files.lock import LOCAL
from tflearn.files.manifests import Manifest, Manifests


@pytest.fixture
def jobs(tmp_path):
    """A function (job, epoch) -> its manifests, in one run directory."""
    return lambda job, epoch=1, **settings: Manifests(tmp_path, tmp_path / 'manifests', job, epoch, **settings)


def _save(manifests, tmp_path, name, text='content', **settings):
    path = tmp_path / manifests.job / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    manifests.add(name, [path], **settings)
    return path


def _newest(manifests):
    return next(iter(manifests.whole()), None)


def test_joins_the_newest_checkpoints_of_all_jobs(jobs, tmp_path):
    learner, server = jobs('train', 3), jobs('replay_server', 2)
    server.add(None, [])
    _save(learner, tmp_path, 'ckpt-100')
    _save(server, tmp_path, '00000001')
    _save(learner, tmp_path, 'ckpt-200')
    newest = _newest(learner)
    assert (newest.number, newest.train_step, newest.replay) == (4, 200, {'replay_server': '00000001'})
    assert str(newest) == 'manifest 4 (epoch 3, train step 200, replay: replay_server 00000001)'
    content = json.loads((tmp_path / 'manifests' / '00000004.json').read_bytes().partition(b'\n')[2])
    assert content['epoch'] == 3 and content['train_step'] == 200 and content['replay'] == newest.replay
    assert content['time'].endswith('Z')


@pytest.mark.parametrize('name', ['../ckpt-1', '/ckpt-1', 'other', ''])
def test_adds_no_name_that_leads_elsewhere(jobs, tmp_path, name):
    outside = tmp_path.parent / f'{tmp_path.name}-outside'
    outside.write_text('content')
    (tmp_path / 'train').mkdir()
    learner = jobs('train')
    with pytest.raises(UserValueError, match='got the checkpoint .*; need its name'):
        learner.add(name, [])
    for path in (outside, tmp_path / '..' / outside.name, tmp_path / 'train' / '..' / '..' / outside.name):
        with pytest.raises(UserValueError, match='got the file .*; need files of the run directory'):
            learner.add('ckpt-1', [path])
    assert not (tmp_path / 'manifests').exists()


def test_a_torn_manifest_is_skipped_wherever_it_is_cut(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr('tflearn.files.manifests._TORN_SECS', 0.0)
    learner = jobs('train')
    _save(learner, tmp_path, 'ckpt-100')
    _save(learner, tmp_path, 'ckpt-200')
    path = tmp_path / 'manifests' / '00000002.json'
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert _newest(learner).train_step == 100
    path.write_bytes(whole.replace(b'ckpt-200', b'ckpt-300'))
    assert _newest(learner).train_step == 100
    _save(learner, tmp_path, 'ckpt-250')
    assert _newest(learner).number == 3


@pytest.mark.parametrize(
    'damage', [lambda path: path.unlink(), lambda path: path.write_text('Content'), lambda path: path.write_text('')]
)
def test_takes_the_newest_pair_of_which_both_are_whole(jobs, tmp_path, damage):
    learner, server = jobs('train'), jobs('replay_server')
    _save(learner, tmp_path, 'ckpt-100')
    _save(server, tmp_path, '00000001')
    _save(learner, tmp_path, 'ckpt-200')
    replay = _save(server, tmp_path, '00000002')
    for step in range(300, 1000, 100):
        newest = _save(learner, tmp_path, f'ckpt-{step}')
    damage(newest)
    assert (_newest(server).train_step, _newest(server).replay['replay_server']) == (800, '00000002')
    assert learner.own() == ['ckpt-800', 'ckpt-200'], 'the order in which the learner tries them'
    damage(replay)
    pair = _newest(server)
    assert (pair.train_step, pair.replay['replay_server']) == (200, '00000001')
    server.add('00000001', [tmp_path / 'replay_server' / '00000001'], base=pair)
    assert learner.own()[0] == 'ckpt-200', 'the learner follows the server'


def test_named_checkpoints_are_few_and_include_those_of_the_replay_before(jobs, tmp_path):
    learner, server = jobs('train'), jobs('replay_server')
    for i in range(4):
        _save(server, tmp_path, f'{i:08}')
        for step in range(1, 6):
            _save(learner, tmp_path, f'ckpt-{10 * i + step}')
    assert learner.named() == {'ckpt-34', 'ckpt-35', 'ckpt-25'}
    assert server.named() == {'00000002', '00000003'}
    assert len(list((tmp_path / 'manifests').iterdir())) == 3


def test_each_replay_server_keeps_its_checkpoint_before(jobs, tmp_path):
    learner, servers = jobs('train'), [jobs('replay_server'), jobs('replay_server_1')]
    for i in range(3):
        for server in servers:
            newest = _save(server, tmp_path, f'{i:08}')
        for step in range(1, 6):
            _save(learner, tmp_path, f'ckpt-{10 * i + step}')
    assert [server.named() for server in servers] == [{'00000001', '00000002'}] * 2
    newest.unlink()
    pair = _newest(servers[0])
    assert pair.replay == {'replay_server': '00000002', 'replay_server_1': '00000001'}
    (tmp_path / 'replay_server' / '00000002').unlink()
    whole = _newest(servers[0])
    assert whole.replay == {'replay_server': '00000001', 'replay_server_1': '00000001'}
    # The first server restored it; the second one and the learner follow.
    servers[0].add('00000001', [tmp_path / 'replay_server' / '00000001'], base=whole)
    assert _newest(servers[1]).replay == whole.replay
    assert learner.own()[0] == f'ckpt-{whole.train_step}'
    # The run goes on without the second server, whose checkpoints were moved away.
    (tmp_path / 'replay_server_1').rename(tmp_path / 'away')
    assert _newest(learner) is None
    assert next(iter(learner.whole(['train', 'replay_server']))).replay['replay_server'] == '00000001'


def test_an_owner_that_lost_its_lock_adds_nothing(jobs, tmp_path):
    stale = jobs('train', 1)
    _save(stale, tmp_path, 'ckpt-100')
    owner = jobs('train', 2)
    owner.add('ckpt-100', [tmp_path / 'train' / 'ckpt-100'])
    with pytest.raises(RuntimeError, match=r'got a checkpoint of the train job of epoch 1; need epoch 2, which has'):
        _save(stale, tmp_path, 'ckpt-900')
    assert _newest(owner).train_step == 100
    # Another job's manifest does not make the lock of the first one older.
    server = jobs('replay_server')
    server.add(None, [], base=owner.newest_first()[-1])
    with pytest.raises(RuntimeError, match='of epoch 1'):
        _save(stale, tmp_path, 'ckpt-900')


def test_readers_skip_what_an_older_owner_wrote_later(jobs, tmp_path):
    owner = jobs('train', 2)
    _save(owner, tmp_path, 'ckpt-100')
    late = Manifest(
        2, '', {'train': jobs('train', 1) and owner.newest_first()[0].parts['train'].__class__(1, None, {})}
    )
    (tmp_path / 'manifests' / '00000002.json').write_bytes(late.encode())
    assert [manifest.number for manifest in owner.newest_first()] == [1]


def test_writers_at_the_same_time_lose_nothing(jobs, tmp_path):
    def write(job):
        for i in range(20):
            _save(jobs(job), tmp_path, f'{i:08}')

    threads = [threading.Thread(target=write, args=(f'server{i}',)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    newest = jobs('server0').newest_first()[0]
    assert newest.number >= 80
    assert newest.replay == {f'server{i}': '00000019' for i in range(4)}


def test_a_reader_adds_nothing(jobs, tmp_path):
    jobs('train', read_only=True).add(None, [])
    assert not (tmp_path / 'manifests').exists()


@pytest.mark.parametrize('part', ['{"epoch": Infinity, "checkpoint": null, "files": {}}', '{"epoch": 1e999}', '[]'])
def test_a_manifest_with_a_number_that_none_is_is_skipped(tmp_path, part):
    body = f'{{"time": "t", "parts": {{"train": {part}}}}}'.encode()
    path = tmp_path / '00000001.json'
    path.write_bytes(f'{len(body)} {hashlib.sha256(body).hexdigest()}\n'.encode() + body)
    assert Manifest.read(LOCAL, path) is None
