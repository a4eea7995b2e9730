import contextlib
import threading

import pytest
import reverb
import tensorflow as tf

from tests import streams
from tflearn.coordinator import publisher as publisher_module
from tflearn.coordinator import weights_channels, weights_contract, weights_relay
from tflearn.coordinator.publisher import Publisher
from tflearn.coordinator.subscriber import Publication, Subscriber
from tflearn.coordinator.weights_channels import Plane
from tflearn.coordinator.weights_client import Client
from tflearn.coordinator.weights_server import WeightsServer
from tflearn.core.train_step import create_train_step
from tflearn.core.waiting import wait_until
from tflearn.net.server_options import ServerOptions
from tflearn.replay.reverb import library


def _variables(value, units=3):
    return [
        tf.Variable(tf.fill((2, units), float(value)), name='kernel'),
        tf.Variable(tf.fill((units,), float(value)), name='bias'),
    ]


@pytest.fixture
def address():
    server = reverb.Server([library.make_table(weights_contract.table(_variables(0)))])
    yield f'localhost:{server.port}'
    streams.wait_until_ended()
    server.stop()


@pytest.fixture(params=['table', 'server', 'relay'])
def plane(request, address):
    """Where weights travel: through the replay server, a weights server, or a relay of it."""
    with contextlib.ExitStack() as stack:
        if request.param == 'table':
            yield Plane(), Plane()
            return
        server = stack.enter_context(contextlib.closing(WeightsServer(ServerOptions())))
        root = Plane((f'localhost:{server.port}',))
        if request.param == 'server':
            yield root, root
            return
        relay_server = stack.enter_context(contextlib.closing(WeightsServer(ServerOptions(), takes=False)))
        stop, client = threading.Event(), Client(root.addresses, 'relay')
        thread = threading.Thread(target=weights_relay.follow, args=(relay_server.newest, client, stop))
        thread.start()
        yield root, Plane((f'localhost:{relay_server.port}',))
        stop.set()
        client.close()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def publisher_of(address, plane, opened):
    return lambda variables, **given: opened(Publisher(address, variables, plane[0], **given))


@pytest.fixture
def subscriber_of(address, plane, opened):
    def make(variables, train_step=None, interval_secs=0.05):
        step = create_train_step() if train_step is None else train_step
        return opened(Subscriber(address, variables, step, interval_secs, plane[1], 'collect_0'))

    return make


@pytest.fixture
def opened():
    """Returns a function that closes an object before the server ends."""
    with contextlib.ExitStack() as stack:

        def enter(end):
            stack.callback(end.close)
            return end

        yield enter


def test_weights_and_counters_arrive(publisher_of, subscriber_of):
    published, pulled, train_step = _variables(5), _variables(0), create_train_step()
    publisher, subscriber = publisher_of(published), subscriber_of(pulled, train_step)
    assert subscriber.newest == Publication()
    publisher.publish(train_step=40, policy_version=2, env_steps=900)
    subscriber.wait(timeout_secs=20)
    newest = subscriber.newest
    assert (newest.train_step, newest.policy_version, newest.env_steps, newest.finished) == (40, 2, 900, False)
    assert int(train_step.numpy()) == 40
    for there, here in zip(published, pulled, strict=True):
        tf.debugging.assert_equal(there, here)
    assert not subscriber.pull(), 'the same version again'


def test_there_is_nothing_before_the_first_publication(publisher_of, subscriber_of):
    subscriber = subscriber_of(_variables(1))
    assert not subscriber.pull()
    with pytest.raises(TimeoutError, match='weights from a learner'):
        subscriber.wait(timeout_secs=0.5)


def test_newest_publication_wins(publisher_of, subscriber_of):
    published, pulled = _variables(0), _variables(0)
    publisher = publisher_of(published)
    subscriber = subscriber_of(pulled)
    for version in range(1, 21):
        published[1].assign(tf.fill((3,), float(version)))
        publisher.publish(version, version, 0, finished=version == 20)
    wait_until(lambda: subscriber.pull() and subscriber.newest.finished, 'the last version', 20)
    assert subscriber.newest.policy_version == 20
    assert float(pulled[1][0]) == 20.0


def test_wait_ignores_a_finished_learner(publisher_of, subscriber_of):
    publisher = publisher_of(_variables(1))
    subscriber = subscriber_of(_variables(0))
    publisher.publish(1, 1, 0, finished=True)
    with pytest.raises(TimeoutError, match='a learner that trains'):
        subscriber.wait(2.0)
    publisher.publish(1, 1, 0)  # a restored learner repeats version numbers
    subscriber.wait(20.0)
    assert not subscriber.newest.finished
    assert publisher.newest_version() == 1


def test_assigns_each_publication_once(publisher_of, subscriber_of):
    published, pulled = _variables(5), _variables(0)
    publisher = publisher_of(published)
    subscriber = subscriber_of(pulled)
    publisher.publish(1, 1, 0)
    subscriber.wait(20)
    pulled[1].assign([9.0, 9.0, 9.0])
    with pytest.raises(TimeoutError):  # it polls a few dozen times in that time
        wait_until(subscriber.pull, 'the same version again', 0.5)
    assert float(pulled[1][0]) == 9.0
    publisher.publish(2, 2, 0)
    wait_until(subscriber.pull, 'the next version', 20)
    assert float(pulled[1][0]) == 5.0


def test_publication_is_a_snapshot(publisher_of, subscriber_of):
    published, pulled = _variables(1), _variables(0)
    publisher = publisher_of(published)
    publisher.publish(1, 1, 0)
    published[0].assign(tf.fill((2, 3), 9.0))  # training continues
    subscriber = subscriber_of(pulled)
    subscriber.wait(20)
    assert float(pulled[0][0, 0]) == 1.0


@pytest.mark.parametrize('make', [lambda a, v: Publisher(a, v), lambda a, v: Subscriber(a, v, create_train_step())])
def test_rejects_another_network_by_name(address, make):
    with pytest.raises(ValueError, match=r'another network: kernel:0 is float32\[2, 3\] there, float32\[2, 4\] here'):
        make(address, _variables(0, units=4))
    with pytest.raises(ValueError, match=r'bias:0 is float32\[3\] there, absent here'):
        make(address, _variables(0)[:1])


def test_names_do_not_matter(address):
    renamed = [tf.Variable(variable, name='other') for variable in _variables(0)]
    Publisher(address, renamed).close()


def test_acting_continues_while_the_server_is_down(opened):
    server = reverb.Server([library.make_table(weights_contract.table(_variables(0)))])
    subscriber = opened(Subscriber(f'localhost:{server.port}', _variables(0), create_train_step(), interval_secs=0.05))
    server.stop()
    with pytest.raises(TimeoutError):
        subscriber.wait(1.0)


def test_restarted_server_gets_the_weights_again(monkeypatch, address, opened):
    monkeypatch.setattr(publisher_module, '_CHECK_SECS', 0.2)
    publisher = opened(Publisher(address, _variables(5)))
    subscriber = opened(Subscriber(address, _variables(0), create_train_step()))
    publisher.publish(1, 1, 0)
    subscriber.wait(20)
    reverb.Client(address).reset(weights_contract.VARIABLES)  # as a restart does
    late = opened(Subscriber(address, pulled := _variables(0), create_train_step()))
    late.wait(20)
    assert float(pulled[0][0, 0]) == 5.0


def test_restarted_weights_server_gets_the_weights_again(monkeypatch, opened):
    monkeypatch.setattr(publisher_module, '_CHECK_SECS', 0.2)
    server = WeightsServer(ServerOptions())
    plane = Plane((f'localhost:{server.port}',))
    publisher = opened(Publisher('localhost:1', _variables(5), plane))
    subscriber = opened(Subscriber('localhost:1', pulled := _variables(0), create_train_step(), plane=plane))
    publisher.publish(1, 1, 0)
    subscriber.wait(20)
    server.close()
    server = opened(WeightsServer(ServerOptions(port=server.port)))
    wait_until(lambda: server.newest.message, 'the publication', 20)
    late = opened(Subscriber('localhost:1', pulled := _variables(0), create_train_step(), plane=plane))
    late.wait(20)
    assert float(pulled[0][0, 0]) == 5.0
    publisher.publish(2, 2, 0)
    wait_until(subscriber.pull, 'weights for who was there before', 20)


def test_weights_of_another_network_are_refused_by_name(opened):
    server = opened(WeightsServer(ServerOptions()))
    plane = Plane((f'localhost:{server.port}',))
    early = opened(Subscriber('localhost:1', _variables(0, units=4), create_train_step(), plane=plane))
    opened(Publisher('localhost:1', _variables(5), plane)).publish(1, 1, 0)
    with pytest.raises(ValueError, match=r'another network: kernel:0 is float32\[2, 3\] there, float32\[2, 4\] here'):
        early.wait(20)
    with pytest.raises(ValueError, match='another network'):
        Subscriber('localhost:1', _variables(0, units=4), create_train_step(), plane=plane)
    with pytest.raises(ValueError, match='another network'):
        Publisher('localhost:1', _variables(0, units=4), plane)
    with pytest.raises(ValueError, match='need one to publish to'):
        Publisher('localhost:1', _variables(5), Plane(('a:1', 'b:2')))


def test_rejects_variables_of_unknown_shape():
    variable = tf.Variable([1.0], shape=tf.TensorShape([None]), name='v')
    with pytest.raises(ValueError, match='need fixed dimensions'):
        weights_contract.signature([variable])


def test_failure_of_the_sending_thread_fails_the_next_publication(address, opened, monkeypatch):
    def fail(*_):
        raise TypeError('broken')

    monkeypatch.setattr(weights_channels.connection, 'insert', fail)
    publisher = opened(Publisher(address, _variables(1)))
    publisher.publish(1, 1, 0)
    wait_until(lambda: not publisher._thread.is_alive(), 'the end of the thread', 20)
    with pytest.raises(RuntimeError, match='got a failed thread that publishes weights') as raised:
        publisher.publish(2, 2, 0)
    assert isinstance(raised.value.__cause__, TypeError)


def test_does_not_publish_weights_that_are_not_finite(publisher_of, subscriber_of, caplog):
    published, pulled, train_step = _variables(5), _variables(0), create_train_step()
    publisher, subscriber = publisher_of(published), subscriber_of(pulled, train_step)
    publisher.publish(train_step=40, policy_version=2, env_steps=900)
    subscriber.wait(timeout_secs=20)
    published[1].assign(tf.fill((3,), float('nan')))
    publisher.publish(train_step=50, policy_version=3, env_steps=1000)
    assert 'did not publish the weights of version 3: got weights at train step 50 that are not finite' in caplog.text
    wait_until(subscriber.pull, 'the new version', 20)
    assert subscriber.newest.policy_version == 3, 'collectors may wait for it'
    assert pulled[1].numpy().tolist() == [5.0] * 3
    publisher.publish(train_step=60, policy_version=4, env_steps=1100, finished=True)
    wait_until(lambda: subscriber.pull() or subscriber.newest.finished, 'the end', 20)
    assert (subscriber.newest.policy_version, subscriber.newest.finished) == (4, True)
    assert pulled[1].numpy().tolist() == [5.0] * 3
