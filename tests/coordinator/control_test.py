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


def test_a_version_that_nobody_published_does_not_divide_credits_forever():
    credits = Credits(0, 8, shares=shares(8)).at(control.MAX_VERSION)
    assert credits.policy_version == control.MAX_VERSION
    assert allowed(credits) == [8 * 10_000]


def test_credits_of_any_size_are_divided_at_once():
    sent = Credits(0, 1 << 40, -(1 << 53), (*shares(1, 3), Share('late', 1, 2, 0, 1 << 53)))
    credits = control.decode(control.encode(sent), Credits).at(control.MAX_VERSION)
    assert sum(allowed(credits)) == (1 << 53) + 10_000 * (1 << 40) + credits.surplus
    assert 0 <= credits.surplus < 3 and allowed(credits)[2] > 0
    assert max(share.order for share in credits.shares) - min(share.order for share in credits.shares) <= 3


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
        (
            f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": {{"env_steps": "5"}}}}',
            r"counts.env_steps='5'; need a n",
        ),
        (f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": [5]}}', r'counts=\[5\]; need numbers by name'),
        (
            f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": {{}}, "episodes": [{{"return": null}}]}}',
            'episodes.return=None; need a number',
        ),
        (
            f'{{"protocol": 3, "kind": "Report", {LEASE}, "counts": {{}}, "delivered": true}}',
            'delivered=True; need an integer',
        ),
        (
            '{"protocol": 3, "kind": "Report", "lease": {"name": "a", "owner": 5}, "counts": {}}',
            'Lease.owner=5; need a p',
        ),
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


NO_NUMBERS = ('NaN', 'Infinity', '-Infinity', '1e999', '"5"', 'true', 'null', '[]')
NO_COUNTS = (*NO_NUMBERS, '-2', '1' + 30 * '0')


@pytest.mark.parametrize(
    ('field', 'name', 'numbers'),
    [
        ('"counts": {"env_steps": X}', 'counts.env_steps', NO_COUNTS),
        ('"counts": {}, "delivered": X', 'Report.delivered', NO_COUNTS),
        ('"counts": {}, "items_at_once": X', 'Report.items_at_once', NO_COUNTS),
        ('"counts": {}, "first_episode": X', 'Report.first_episode', NO_COUNTS),
        ('"counts": {}, "policy_version": X', 'Report.policy_version', (*NO_COUNTS, str(2**63 - 2))),
        ('"counts": {}, "episodes": [{"return": 1.0}, {"return": X}]', 'episodes.return', NO_NUMBERS),
    ],
)
def test_a_number_that_its_readers_cannot_bear_is_refused_by_its_name(field, name, numbers):
    for number in numbers:
        text = '{"protocol": 3, "kind": "Report", ' + LEASE + ', ' + field.replace('X', number) + '}'
        with pytest.raises(UserValueError, match=f'{name}=.*; need a'):
            control.decode(text, control.Report)


@pytest.mark.parametrize('lease', ['"epoch": 0', '"epoch": 1e3', '"ttl_secs": NaN', '"ttl_secs": 0', '"ttl_secs": 1e9'])
def test_a_lease_that_would_never_end_or_begin_is_refused(lease):
    text = '{"protocol": 3, "kind": "Report", "lease": {"name": "a", "owner": "b", ' + lease + '}, "counts": {}}'
    with pytest.raises(UserValueError, match=lease.split('"')[1]):
        control.decode(text, control.Report)


@pytest.mark.parametrize('name', ['', 'x' * 257, 'a\\nb', '\\ud800', '\\u0000'])
@pytest.mark.parametrize('field', ['"counts": {"X": 1}', '"counts": {}, "episodes": [{"X": 1}]'])
def test_a_name_that_no_log_can_hold_is_refused(name, field):
    text = '{"protocol": 3, "kind": "Report", ' + LEASE + ', ' + field.replace('X', name) + '}'
    with pytest.raises(UserValueError, match='need a printable text of 1 to 256 characters'):
        control.decode(text, control.Report)


def test_a_message_with_more_names_than_a_run_has_is_refused():
    with pytest.raises(UserValueError, match='2001 names in counts; need at most 2000'):
        control.decode(control.encode(Report(Lease('a', 'b'), {f'n{i}': 1 for i in range(2001)})), Report)


@pytest.mark.parametrize('share', ['"items_at_once": 0', '"items_at_once": -1', '"allowed": NaN', '"order": -5'])
def test_credits_that_would_never_be_divided_are_refused(share):
    fields = '"owner": "a", "epoch": 1, "items_at_once": 8, "allowed": 0, "order": 0'
    name = share.split(':')[0]
    fields = ', '.join([part for part in fields.split(', ') if not part.startswith(name)] + [share])
    text = (
        '{"protocol": 3, "kind": "Credits", "policy_version": 0, "items_per_version": 8, "shares": [{' + fields + '}]}'
    )
    with pytest.raises(UserValueError, match=name.strip('"')):
        control.decode(text, Credits)


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
