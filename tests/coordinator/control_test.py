"""The control protocol's messages, leases and the division of credits: no transport, no clock but the test's."""

import dataclasses

import numpy as np
import pytest

from tflearn.coordinator import control
from tflearn.coordinator.control import AcquiredLease, Credits, Lease, Leases, Report, Share
from tflearn.core.errors import UserValueError

LEASE = '"lease": {"name": "a", "owner": "b"}'


def shares(*items_at_once):
    return tuple(Share(f'owner{i}', 1, items, 0, 0) for i, items in enumerate(items_at_once))


def allowed(credits):
    return [share.allowed for share in credits.shares]


@pytest.mark.parametrize('seed', range(50))
def test_credits_add_up_to_the_wanted_items_for_any_number_of_collectors(seed):
    random = np.random.default_rng(seed)
    items_at_once = random.integers(1, 20, random.integers(1, 9)).tolist()
    wanted = 0
    credits = Credits(0, int(random.integers(1, 40)), shares=shares(*items_at_once))
    for version in range(1, 60):
        credits = credits.at(version)
        wanted += credits.items_per_version
        assert sum(allowed(credits)) == wanted + credits.surplus
        assert 0 <= credits.surplus < max(items_at_once)
        assert all(items % at_once == 0 for items, at_once in zip(allowed(credits), items_at_once, strict=True))
        assert max(allowed(credits)) - min(allowed(credits)) <= max(items_at_once), 'they take turns'


def test_four_collectors_share_the_items_of_one():
    for num_collectors in (1, 2, 4):
        credits = Credits(0, 8, shares=shares(*[8] * num_collectors))
        assert [sum(allowed(credits.at(version))) for version in range(5)] == [0, 8, 16, 24, 32]
    assert allowed(credits.at(4)) == [8, 8, 8, 8]


@pytest.mark.parametrize('seed', range(20))
def test_shares_do_not_depend_on_the_steps_of_their_computation(seed):
    random = np.random.default_rng(seed)
    first = Credits(3, 10, -4, shares(*random.integers(1, 9, 5).tolist()))
    credits = first
    for version in np.sort(random.integers(0, 50, 10)).tolist():
        credits = credits.at(version)
        assert credits == first.at(max(3, version))
        assert credits.at(0) == credits


def test_credits_wait_for_a_collector():
    credits = Credits(0, 8).at(3)
    assert (credits.surplus, credits.shares) == (-24, ())
    shared, surplus = control.allocate(shares(5), credits.surplus)
    assert (shared[0].allowed, surplus) == (25, 1)


def test_only_the_holder_of_the_lease_has_the_share():
    credits = Credits(1, 8, shares=shares(4))
    credits = dataclasses.replace(credits, shares=(credits.shares[0].plus(4),))
    assert credits.allowed(Lease('collect_0', 'owner0')) == 4
    assert credits.allowed(Lease('collect_0', 'owner0', epoch=2)) == 0
    assert credits.allowed(Lease('collect_0', 'another')) == 0


def test_messages_survive_encoding():
    lease = control.new_lease('collect_0')
    for message in (
        Report(lease, {'env_steps': 5}, [{'return': 1.5}], 3, 8),
        Credits(7, 8, -1, shares(8, 4)),
        Credits(7, 8),
    ):
        assert control.decode(control.encode(message), type(message)) == message


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('{"collector": "a", "counts": {}}', 'got a control message of protocol None; need 3'),
        ('{"protocol": 1, "kind": "Report"}', 'of protocol 1; need 3; start all jobs with the same version'),
        ('{"protocol": 3, "kind": "Order", "lease": {"name": "a", "owner": "b"}}', "of the kind 'Order'"),
        ('{"protocol": 3, "kind": "Report"}', 'need a control message'),
        ('{"protocol": 3, "kind": "Report", "lease": {"name": "a", "owner": "b"}, "x": 1}', 'need a control message'),
        (f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": {{"env_steps": "5"}}}}', 'a value of str'),
        (f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": [5]}}', 'need a control message'),
        (
            f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": {{}}, "episodes": [{{"return": null}}]}}',
            'of NoneType',
        ),
        (f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": {{}}, "delivered": true}}', 'a value of bool'),
        ('{"protocol": 3, "kind": "Report", "lease": {"name": "a", "owner": 5}, "counts": {}}', 'a value of int'),
        ('[' * 100_000, 'need a control message'),
        (' ' * 2_000_000, 'of 2000000 bytes; need at most'),
        ('1' * 5000, 'need a control message'),
        (b'\xff', 'need a control message'),
        ('[]', 'need a control message'),
        ('half a messa', 'need a control message'),
    ],
)
def test_rejects_invalid_messages(text, message):
    with pytest.raises(UserValueError, match=message):
        control.decode(text, control.Report)


def test_lease_expires_by_the_receivers_clock_unless_renewed():
    now = [100.0]
    leases, lease = Leases(clock=lambda: now[0]), Lease('collect_0', 'a', ttl_secs=5.0)
    assert leases.renew(lease)
    now[0] = 104.0
    assert leases.renew(lease)
    now[0] = 109.0
    assert leases.is_valid('a')
    assert leases.remove_expired() == []
    now[0] = 109.1
    assert not leases.is_valid('a')
    assert leases.remove_expired() == [lease]
    assert leases.remove_expired() == []


def test_rejects_messages_of_an_older_epoch():
    leases = Leases(clock=lambda: 0.0)
    assert leases.renew(Lease('train', 'a', epoch=2))
    assert not leases.renew(Lease('train', 'a', epoch=1))
    assert leases.renew(Lease('train', 'b', epoch=1)), 'of another owner'


def test_suspended_holder_takes_the_next_epoch():
    now = [0.0]
    held = AcquiredLease(Lease('collect_0', 'a', ttl_secs=5.0), clock=lambda: now[0])
    now[0] = 5.0
    held.begin_if_expired(10)
    held.renew()
    assert (held.lease.epoch, held.began_at) == (1, 0)
    now[0] = 10.1
    assert held.expired
    held.begin_if_expired(20)
    assert (held.lease.epoch, held.began_at, held.expired) == (2, 20, False)
