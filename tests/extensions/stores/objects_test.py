"""Objects in any store: created by one of many, read as they are, errors without credentials."""

import json
import threading

import pytest

pytest.importorskip('fsspec', reason='needs fsspec: the extra stores')

from tflearn.core.errors import UserOSError, UserValueError
from tflearn.extensions.stores.objects import Objects


def test_of_many_that_create_one_succeeds(url):
    won = []

    def create(i):
        if Objects(url).create('owners/train-000001.json', json.dumps({'i': i}).encode()):
            won.append(i)

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 1
    assert json.loads(Objects(url).read('owners/train-000001.json')) == {'i': won[0]}


def test_what_another_process_changed_is_read_after_a_listing(url):
    objects = Objects(url)
    objects.write('status/train.json', b'short')
    assert list(objects.list('status')) == ['status/train.json']
    # Another instance of the file system, as another process has one.
    type(objects._fs)(skip_instance_cache=True).pipe_file(objects._path('status/train.json'), b'much longer')
    type(objects._fs)(skip_instance_cache=True).pipe_file(objects._path('status/evaluate.json'), b'new')
    assert objects.read('status/train.json') == b'much longer' and objects.size('status/train.json') == 11
    assert objects.read('status/evaluate.json') == b'new'


def test_a_store_without_conditional_puts_is_refused_in_one_line(url, monkeypatch):
    Objects(url).check_creates()

    def overwrite(self, name, content):
        self.write(name, content)
        return True

    monkeypatch.setattr(Objects, 'create', overwrite)
    with pytest.raises(UserValueError, match='no conditional put .it overwrites what exists.; need one'):
        Objects(url).check_creates()

    def reject(self, name, content):
        raise NotImplementedError('mode is not supported')

    monkeypatch.setattr(Objects, 'create', reject)
    with pytest.raises(UserValueError, match='no conditional put .*mode is not supported'):
        Objects(url).check_creates()
    assert not Objects(url).list()


def test_a_store_that_is_away_is_one_error_without_credentials(url, monkeypatch):
    monkeypatch.setattr('tflearn.extensions.stores.objects._RETRY_SECS', 0.3)
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'very-secret')
    objects, tries = Objects(url), []

    def fail(*_, **__):
        tries.append(1)
        raise RuntimeError('no route with very-secret to https://me:pass@store/')

    monkeypatch.setattr(objects._fs, 'cat_file', fail)
    with pytest.raises(
        UserOSError, match=r'could not read DONE in .*no route with \*\*\* to https://\*\*\*@store/'
    ) as e:
        objects.read('DONE')
    assert 'very-secret' not in str(e.value) and e.value.__cause__ is None and len(tries) > 1


@pytest.mark.parametrize(
    ('wrong', 'match'),
    [
        ('s3://key:secret@bucket/run', 'with credentials'),
        ('s3:///run', 'need a URL with a bucket'),
        ('nothing://bucket/run', 'cannot be used'),
    ],
)
def test_a_wrong_url_is_refused_in_one_line(wrong, match):
    with pytest.raises(UserValueError, match=match) as error:
        Objects(wrong)
    assert 'secret' not in str(error.value)


def test_calls_that_are_stuck_hold_up_no_locks_and_no_later_calls(url, monkeypatch):
    monkeypatch.setattr('tflearn.extensions.stores.objects._RETRY_SECS', 0.1)
    objects, stuck, begun = Objects(url), threading.Event(), threading.Semaphore(0)
    objects.write('DONE', b'content')
    original = objects._fs.cat_file

    def hang(path, *arguments, **options):
        if path.endswith('DONE'):
            begun.release()
            assert stuck.wait(60)
        return original(path, *arguments, **options)

    monkeypatch.setattr(objects._fs, 'cat_file', hang)
    errors = []

    def read():
        try:
            objects.read('DONE')
        except UserOSError as error:
            errors.append(error)

    monkeypatch.setattr('tflearn.extensions.stores.objects._CALL_SECS', 1.0)
    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert all(begun.acquire(timeout=20) for _ in threads)
    assert objects.create('owners/train-000001.json', b'{}')
    objects.write('owners/train-000001.json', b'renewed')
    assert list(objects.list('owners')) == ['owners/train-000001.json'] and not errors, 'before the others ended'
    for thread in threads:
        thread.join(20)
    assert len(errors) == 16
    monkeypatch.setattr(objects._fs, 'cat_file', original)
    assert objects.read('DONE') == b'content'
    stuck.set()
