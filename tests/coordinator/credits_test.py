"""The items that the learner grants while collectors join, are lost and return, by a fake clock."""

import dataclasses

import numpy as np
import pytest

from tflearn.coordinator.control import Lease, Report
from tflearn.coordinator.reports import CreditLedger


class Run:
    """A learner that takes `items` with each version, collectors that make all allowed items, and a replay."""

    def __init__(self, items=8, ahead=1):
        self.now, self.items, self.arrived, self.used, self.version, self.dropped = 0.0, items, 0, 0, 0, 0
        self.ledger = CreditLedger(items, ahead, clock=lambda: self.now)
        self.collectors = {}

    def join(self, name, at_once):
        self.collectors[name] = Report(Lease(name, name), {}, delivered=0, items_at_once=at_once)

    def collect(self):
        """Returns the items that each collector made."""
        made = {}
        for name, report in self.collectors.items():
            delivered, may = report.delivered, self.ledger.credits.allowed(report.lease)
            while delivered < may:
                delivered += report.items_at_once
            made[name] = delivered - report.delivered
            self.collectors[name] = dataclasses.replace(report, delivered=delivered)
        self.arrived += sum(made.values())
        return made

    def poll(self):
        for report in self.collectors.values():
            self.ledger.renew(report)
        self.ledger.reconcile(self.dropped, self.arrived)

    def train(self):
        """Takes an iteration and publishes; returns whether there were enough items."""
        if self.arrived - self.dropped - self.used < self.items and self.version:
            return False
        self.used += self.items if self.version else 0
        self.version += 1
        self.ledger.publish(self.version, self.used)
        return True

    @property
    def waiting(self):
        return self.arrived - self.dropped - self.used


def test_items_per_version_stay_the_same_when_a_collector_is_lost():
    run = Run()
    run.join('a', 4)
    run.join('b', 4)
    run.train()
    run.poll()
    for _ in range(10):
        assert run.collect() in ({'a': 8, 'b': 8}, {'a': 4, 'b': 4})
        assert run.train()
        run.poll()
    del run.collectors['b']  # with its credits
    versions = run.version
    while run.collect()['a']:
        run.train()
        run.poll()
    assert run.version - versions <= 2, 'items that wait for the lost collector'
    run.now += 6.0
    run.poll()
    for _ in range(10):
        assert run.collect()['a'] > 0
        assert run.train()
        run.poll()
        assert run.waiting <= 16, 'and no more than without the loss'
    run.collect()
    assert run.train()
    assert run.collect() == {'a': 8}, 'all of an iteration'


def test_new_collector_gets_a_share_of_the_same_total():
    run = Run(ahead=0)
    run.join('a', 4)
    run.train()
    run.poll()
    assert run.collect() == {'a': 8}
    run.join('b', 4)
    run.poll()
    assert run.collect() == {'a': 0, 'b': 0}, 'nothing is left of this version'
    run.train()
    assert run.collect() == {'a': 4, 'b': 4}


def test_new_collector_gets_unused_credits():
    run = Run(ahead=0)
    run.train()
    run.poll()
    run.join('a', 8)
    run.poll()
    assert run.collect() == {'a': 8}


def test_dropped_items_are_wanted_again():
    run = Run()
    run.join('a', 64)
    run.train()
    run.poll()
    assert run.collect() == {'a': 64}
    while run.waiting >= 8:
        assert run.train()
        run.poll()
        assert run.collect() == {'a': 0} or run.waiting <= 64
        if run.version == 3:
            run.dropped += run.waiting  # too old
    assert not run.train()
    run.poll()
    assert run.collect() == {'a': 64}


def test_returning_collector_counts_only_items_that_it_made():
    run = Run(ahead=0)
    run.join('a', 8)
    run.join('b', 8)
    run.train()
    run.poll()
    (holder,) = [name for name, report in run.collectors.items() if run.ledger.credits.allowed(report.lease)]
    stopped = run.collectors.pop(holder)
    run.now += 4.0
    run.poll()
    run.now += 4.0
    run.poll()
    assert sum(run.collect().values()) == 8, 'by the other collector'
    run.arrived += 8  # items of the suspended collector arrive late
    run.collectors[holder] = dataclasses.replace(
        stopped, lease=dataclasses.replace(stopped.lease, epoch=2), delivered=0
    )
    run.poll()
    run.train()
    assert sum(run.collect().values()) == 0, 'they are used first'
    run.train()
    assert sum(run.collect().values()) == 8


def test_ignores_reports_of_an_expired_epoch():
    run = Run()
    report = Report(Lease('a', 'a', epoch=2), {}, delivered=0, items_at_once=8)
    run.ledger.renew(report)
    credits = run.ledger.credits
    run.ledger.renew(dataclasses.replace(report, lease=Lease('a', 'a', epoch=1)))
    run.ledger.renew(dataclasses.replace(report, lease=Lease('worker', 'w'), items_at_once=0))
    assert run.ledger.credits == credits


@pytest.mark.parametrize('seed', range(30))
def test_neither_starves_nor_floods_when_collectors_change(seed):
    random = np.random.default_rng(seed)
    run = Run(items=int(random.integers(1, 30)), ahead=int(random.integers(0, 2)))
    run.train()
    most = 1
    for step in range(200):
        if random.random() < 0.1 or not run.collectors:
            run.join(f'c{step}', int(random.integers(1, 10)))
        elif random.random() < 0.05:
            run.collectors.pop(random.choice(sorted(run.collectors)))
        most = max([most, *(report.items_at_once for report in run.collectors.values())])
        run.collect()
        if random.random() < 0.7:  # reports are late
            run.now += 1.0
            run.poll()
        run.train()
        if random.random() < 0.05:
            run.dropped += int(random.integers(0, run.waiting + 1))
        # What is wanted ahead, a turn too many, and the same of those who made it without telling.
        assert run.waiting <= 2 * (2 * run.items + most)
    versions = run.version
    for _ in range(40):
        run.collect()
        run.now += 1.0
        run.poll()
        run.train()
    assert run.version >= versions + 30
