import contextlib
import threading

import pytest
import tensorflow as tf

from tflearn.coordinator import control, published_weights, weights_transport
from tflearn.coordinator import server as coordinator_server
from tflearn.coordinator.published_weights import Publication, Publisher, Subscriber
from tflearn.core.access import Access
from tflearn.core.train_step import create_train_step
from tflearn.core.waiting import wait_until
from tflearn.net.server_options import ServerOptions


def _variables(value, units=3):
    return [
        tf.Variable(tf.fill((2, units), float(value)), name='kernel'),
        tf.Variable(tf.fill((units,), float(value)), name='bias'),
    ]


@pytest.fixture(params=['coordinator', 'relay'])
def run(request, coordinating):
    """A coordinator, and a relay of it if collectors ask one."""
    server = coordinating.serve()
    learner = coordinating.learner(server)
    if request.param == 'coordinator':
        yield server, learner
        return
    stop = threading.Event()
    given = (ServerOptions(), lambda status: None, stop, '', f'localhost:{server.port}')
    thread = threading.Thread(target=coordinator_server.serve, args=given)
    thread.start()
    wait_until(lambda: learner.addresses('relay'), 'the relay', 20)
    yield server, learner
    stop.set()
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def publisher_of(run, opened):
    return lambda variables: opened(Publisher(run[1], variables))


@pytest.fixture
def subscriber_of(run, coordinating, opened):
    def make(variables, train_step=None):
        step = create_train_step() if train_step is None else train_step
        return opened(Subscriber(coordinating.job(run[0]), variables, step))

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


def test_a_restarted_coordinator_gets_the_weights_again(coordinating, opened):
    server = coordinating.serve()
    publisher = opened(Publisher(coordinating.learner(server), _variables(5)))
    subscriber = opened(Subscriber(coordinating.job(server), pulled := _variables(0), create_train_step()))
    publisher.publish(1, 1, 0)
    subscriber.wait(20)
    server.close()
    server = coordinating.serve(port=server.port)
    wait_until(lambda: server.state.newest.message, 'the publication', 20)
    late = opened(Subscriber(coordinating.job(server), pulled := _variables(0), create_train_step()))
    late.wait(20)
    assert float(pulled[0][0, 0]) == 5.0
    publisher.publish(2, 2, 0)
    wait_until(subscriber.pull, 'weights for who was there before', 20)


def test_a_learner_that_is_behind_goes_on_with_a_newer_version(coordinating, opened):
    """Both it and the coordinator were killed; its checkpoint is older than what a collector acts with."""
    server = coordinating.serve()
    collector = coordinating.job(server, role='train')  # which makes the contract
    collector.report(control.Report(control.new_lease('collect_0'), {}, policy_version=9))
    publisher = opened(Publisher(coordinating.learner(server), _variables(5)))
    subscriber = opened(Subscriber(collector, _variables(0), create_train_step()))
    publisher.publish(1, 4, 0)
    subscriber.wait(20)
    assert subscriber.newest.policy_version == publisher.least_version == 10


def test_weights_of_another_network_are_refused_by_name(coordinating, opened):
    server = coordinating.serve()
    opened(Publisher(coordinating.learner(server), _variables(5))).publish(1, 1, 0)
    early = opened(Subscriber(coordinating.job(server), _variables(0, units=4), create_train_step()))
    with pytest.raises(ValueError, match=r'another network: kernel:0 is float32\[2, 3\] there, float32\[2, 4\] here'):
        early.wait(20)


def test_float32_travels_as_bfloat16_if_asked_for(coordinating, opened):
    server = coordinating.serve()
    access = Access(f'localhost:{server.port}', weights_dtype='bfloat16')
    opened(Publisher(coordinating.learner(server, access=access), _variables(1 / 3))).publish(1, 1, 0)
    subscriber = opened(Subscriber(coordinating.job(server), pulled := _variables(0), create_train_step()))
    subscriber.wait(20)
    assert 0 < abs(float(pulled[0][0, 0]) - 1 / 3) < 2**-8 / 3


def test_rejects_variables_of_unknown_shape():
    variable = tf.Variable([1.0], shape=tf.TensorShape([None]), name='v')
    with pytest.raises(ValueError, match='need fixed dimensions'):
        published_weights.specs([variable])


def test_failure_of_the_sending_thread_fails_the_next_publication(coordinating, opened, monkeypatch):
    def fail(*_):
        raise TypeError('broken')

    monkeypatch.setattr(weights_transport, 'make', fail)
    publisher = opened(Publisher(coordinating.learner(coordinating.serve()), _variables(1)))
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
