import numpy as np
import pytest

from tflearn.extensions.tasks import recommender


def test_regret_candidates_and_boredom():
    """The best candidate has no regret and is shown once; the taste along it shrinks by 0.3 of its reward."""
    items = recommender.embeddings(50, 4)
    np.testing.assert_allclose(np.linalg.norm(items, axis=1), 1.0, rtol=1e-6)
    environment = recommender.Recommender(items, 20, 3)
    seen, _ = environment.reset(seed=1)
    assert seen['candidates'].sum() == 20
    for step in range(3):
        values = np.where(seen['candidates'], items @ seen['user'], -np.inf)
        action = int(values.argmax())
        after, reward, ended, truncated, info = environment.step(action)
        assert info['regret'] == pytest.approx(0, abs=1e-6) and abs(reward - values.max()) < 0.6
        np.testing.assert_allclose(after['user'], seen['user'] - 0.3 * values.max() * items[action], atol=1e-6)
        assert not after['candidates'][action] and after['candidates'].sum() == 19 - step
        assert after['left'] == pytest.approx(1 - (step + 1) / 3) and ended == (step == 2) and not truncated
        seen = after
    with pytest.raises(ValueError, match='need a candidate'):
        environment.step(action)


def test_another_candidate_has_a_regret():
    environment = recommender.Recommender(recommender.embeddings(50, 4), 50, 3)
    seen, _ = environment.reset(seed=1)
    values = recommender.embeddings(50, 4) @ seen['user']
    assert environment.step(int(values.argmin()))[4]['regret'] == pytest.approx(values.max() - values.min(), rel=1e-5)


def test_refuses_more_candidates_than_items():
    with pytest.raises(ValueError, match='got session_steps=5, num_candidates=500, num_items=10'):
        recommender.make(1, 0, num_items=10)
    environments = recommender.make(2, 0, num_items=10, num_candidates=8)
    assert environments.specs.observation['candidates'].shape == (10,)
    environments.close()
