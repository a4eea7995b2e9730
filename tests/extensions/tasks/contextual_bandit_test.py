import numpy as np

from tests.environments import conformance
from tflearn.extensions.tasks import contextual_bandit


def test_the_regret_is_that_of_the_arms_means():
    """Without noise, rewards are the means: reward and regret add up to the reward of the best arm."""
    found = []
    for arm in range(3):
        environments = contextual_bandit.make(200, seed=5, num_arms=3, num_features=4, noise=0.0)
        environments.reset()
        time_step = environments.step(np.full(200, arm))
        assert (time_step.step_type == 2).all() and (time_step.discount == 0).all()
        found.append((time_step.reward, environments.info['regret'], environments.info['is_best']))
    rewards, regrets, best = (np.stack(each) for each in zip(*found, strict=True))
    np.testing.assert_allclose(rewards + regrets, np.tile(rewards.max(0), (3, 1)), atol=1e-6)
    np.testing.assert_array_equal(best.sum(0), 1)
    assert np.abs(rewards).max() <= 1 and len(np.unique(best.argmax(0))) == 3


def test_seeds_share_the_arms():
    """A least squares fit of one seed's rewards predicts those of another."""
    data = []
    for seed in (0, 100):
        environments = contextual_bandit.make(30, seed, num_arms=2, noise=0.0)
        data.append((environments.reset().observation, environments.step(np.ones(30, np.int64)).reward))
    (contexts, rewards), (others, expected) = data
    np.testing.assert_allclose(others @ np.linalg.lstsq(contexts, rewards, rcond=None)[0], expected, atol=1e-5)


def test_conforms():
    conformance.check(lambda num_environments, seed: contextual_bandit.make(num_environments, seed))
