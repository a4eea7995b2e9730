import numpy as np

from tflearn.extensions.tasks import catch


def test_a_paddle_under_the_ball_wins():
    environment = catch.make(20, seed=1)
    returns = np.zeros((2, 20))
    for wins in (0, 1):
        image = environment.reset().observation[..., 0]
        assert image.shape == (20, 10, 5) and (image > 0).sum(axis=(1, 2)).tolist() == [2] * 20
        for step in range(9):
            ball, paddle = image[:, step].argmax(axis=1), image[:, -1].argmax(axis=1)
            action = 1 + np.sign(ball - paddle) if wins else np.where(ball > 2, 0, 2)
            time_step = environment.step(action.astype(np.int64))
            image = time_step.observation[..., 0]
            assert (time_step.discount == (step < 8)).all()
            returns[wins] += time_step.reward
    assert (returns == [[-1], [1]]).all()
    assert len(np.unique(image[:, -1].argmax(axis=1))) == 5, 'the ball falls in every column'
    environment.close()
