"""Each line of a log and of its outcomes is counted once: as a row of the data set, or by why it is none."""

import re

import numpy as np

from tests.extensions.product.outcomes_test import MAP, join, write
from tflearn.data.reader import Dataset, EpisodeReader


def random_log(folder, random):
    """Writes decisions in sessions and their outcomes, some of them wrong, twice, or at other times; returns both."""
    some = lambda usual, *others: usual if random.random() < 0.96 else others[random.integers(len(others))]  # noqa: E731
    decided = [(f'd{i}', 100.0 + i, some(int(random.integers(3)), 7), f's{random.integers(80)}') for i in range(160)]
    decided += [(name, some(at, at + 40), *rest) for name, at, *rest in decided[::7]]  # doubles, some of them later
    rows = [(some(name, None), some(at, 'then'), *rest, some(None, 0), 0.5, at) for name, at, *rest in decided]
    names = 'id', 'time', 'action', 'session', 'activated', 'probability', 'observation'
    write(folder / 'decisions-1.jsonl', names, rows)
    told = [decided[i] for i in random.integers(len(decided), size=160)] * 2
    came = [
        (some(name, 'none'), at + some(5.0, -5.0, 50.0), some(1.0, 'one', None), some(None, 1)) for name, at, *_ in told
    ]
    write(folder / 'outcomes-1.jsonl', ('event_id', 'time', 'reward', 'activated'), [*came, *came[:9]])
    return len(rows), len(came) + 9


def sums(found, name):
    """Returns the count of a line of a report, and how many of these are good."""
    line = next(line for line in found.splitlines() if line.startswith(f'{name}: '))
    good = re.search(r' = (\d+) good', line)
    return int(line.split(': ')[1].split()[0]), int(good[1]) if good else int(line.split(': ')[1].split()[0])


def test_as_many_rows_come_out_of_a_join_as_went_in(tmp_path):
    rests = 0
    for seed in range(12):
        random, folder = np.random.default_rng(seed), tmp_path / str(seed)
        folder.mkdir()
        num_rows, num_outcomes = random_log(folder, random)
        options = {'window_secs': 30.0, 'default_reward': [None, 0.0][seed % 2], 'max_bad_rows': 999}
        options |= {'refused': ['duplicate']} if seed % 3 == 0 else {}
        options |= {'outages': ['135,140'], 'last_secs': 60.0} if seed % 4 < 2 else {}
        found = join(folder, mapped=f"episode = 'session'\n{MAP}" if seed % 5 else MAP, **options)
        steps = [
            sum(len(each['reward']) - 1 for each in EpisodeReader(Dataset([str(path)]), need_finite=False).episodes())
            for path in (folder / 'data', folder / 'data' / 'unknown')
            if path.exists()
        ]
        for name, count in (('rows', num_rows), ('outcomes', num_outcomes)):
            assert sums(found, name)[0] == count, found
            assert sums(found, name)[1] == sums(found, f'{name} that are good')[0], found
        assert sums(found, 'steps')[0] == steps[0]
        assert sum(steps[1:]) == 0 or f'{steps[1]} steps with unknown rewards' in found
        rests += 'in sessions that are left out' in found
    assert rests >= 6
