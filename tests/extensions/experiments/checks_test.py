import pathlib

import numpy as np
import pytest

from tflearn.extensions.experiments import checks
from tflearn.extensions.experiments.checks import Points

ROOT = pathlib.Path(__file__).resolve().parents[3]
RISING, FLAT = np.linspace(0.0, 100.0, 20), np.tile([9.0, 11.0], 10)


def series(**values):
    """Metrics at the train steps 100, 200, ...; __ in a name stands for a slash."""
    return {
        name.replace('__', '/'): Points(100 * np.arange(1, len(each) + 1), np.asarray(each, np.float64))
        for name, each in values.items()
    }


@pytest.mark.parametrize(
    ('check', 'right', 'wrong'),
    [
        ('returns-flat', {'evaluate__mean_return': RISING}, {'evaluate__mean_return': FLAT}),
        (
            'returns-fell',
            {'evaluate__mean_return': RISING},
            {'evaluate__mean_return': np.concatenate([RISING, 30.0 * np.ones(8)])},
        ),
        (
            'entropy-collapsed',
            {'train__extra__entropy': np.linspace(0.69, 0.1, 20)},
            {'train__extra__entropy': np.geomspace(0.69, 1e-4, 20)},
        ),
        (
            'values-grow',
            {'train__extra__mean_value': RISING, 'collect__mean_discounted_return': RISING},
            {'train__extra__mean_value': 10 * RISING, 'collect__mean_discounted_return': RISING},
        ),
        ('critic-loss-grows', {'train__extra__td_loss': FLAT}, {'train__extra__td_loss': np.geomspace(1.0, 1e6, 20)}),
        (
            'explained-variance',
            {'train__extra__explained_variance': 0.9 * FLAT / 11},
            {'train__extra__explained_variance': 0 * FLAT},
        ),
        ('clipped-share', {'train__extra__clipped_share': FLAT / 100}, {'train__extra__clipped_share': FLAT / 20}),
        ('policy-divergence', {'train__extra__kl_to_behaviour': FLAT / 1e3}, {'train__extra__kl_to_behaviour': FLAT}),
        (
            'gradients-clipped',
            {'gradients__dqn__norm': FLAT, 'gradients__dqn__clipped_norm': FLAT},
            {'gradients__dqn__norm': 50 * FLAT, 'gradients__dqn__clipped_norm': np.ones(20)},
        ),
        (
            'dead-layers',
            {'gradients__dqn__a__gradient_norm': FLAT, 'gradients__dqn__b__gradient_norm': FLAT},
            {'gradients__dqn__a__gradient_norm': FLAT, 'gradients__dqn__b__gradient_norm': 0 * FLAT},
        ),
        (
            'dead-units',
            {'gradients__dqn__a__zero_gradient_share': FLAT / 100, 'gradients__dqn__b__zero_gradient_share': 0 * FLAT},
            {'gradients__dqn__a__zero_gradient_share': FLAT / 12, 'gradients__dqn__b__zero_gradient_share': 0 * FLAT},
        ),
        ('nonfinite-steps', {'train__nonfinite_steps': 0 * FLAT}, {'train__nonfinite_steps': FLAT}),
        ('data-wait', {'train__data_wait_share': FLAT / 100}, {'train__data_wait_share': FLAT / 12}),
        ('off-policy', {'train__extra__mean_abs_log_rho': FLAT / 100}, {'train__extra__mean_abs_log_rho': FLAT}),
        ('replay-ratio', {'train__samples_per_insert': FLAT}, {'train__samples_per_insert': 1e3 * FLAT}),
        (
            'unused-data',
            {'collect__unused_steps': 0 * RISING, 'collect__env_steps': 10 * RISING},
            {'collect__unused_steps': RISING, 'collect__env_steps': 10 * RISING},
        ),
        ('unused-data', {'train__extra__ignored_share': 0 * FLAT}, {'train__extra__ignored_share': FLAT / 20}),
        (
            'lost-data',
            {'collect__episodes': RISING, 'collect__dropped_episodes': 0 * RISING},
            {'collect__episodes': RISING, 'collect__dropped_episodes': RISING / 10},
        ),
    ],
)
def test_each_check_tells_a_bad_run_from_a_good_one(check, right, wrong):
    found = {finding.check: finding for finding in checks.run_all(series(**right))}
    assert found[check].wrong is False, found[check].text
    found = {finding.check: finding for finding in checks.run_all(series(**wrong))}
    assert found[check].wrong is True, found[check].text
    assert checks.run_all(series(**wrong))[0].wrong, 'what looks wrong comes first'


def test_too_few_points_say_nothing():
    findings = checks.run_all(series(evaluate__mean_return=FLAT[:5]))
    assert {(finding.wrong, finding.text[:7]) for finding in findings} == {(None, 'needs 6')}


def test_a_return_that_was_high_from_the_start_has_not_fallen():
    found = {finding.check: finding.wrong for finding in checks.run_all(series(evaluate__mean_return=500 * np.ones(9)))}
    assert (found['returns-fell'], found['returns-flat']) == (False, True)


def test_the_page_has_a_section_for_each_check():
    chapter = (ROOT / checks.PAGE).read_text(encoding='utf-8').partition('\n## Is it learning?\n')[2]
    sections = [line.removeprefix('### ') for line in chapter.splitlines() if line.startswith(('## ', '### '))]
    assert sections == list(checks.CHECKS)
