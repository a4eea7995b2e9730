import pytest
import tensorflow as tf

from tests.agents import example_data
from tflearn.agents import appo
from tflearn.agents.appo import SurrogateOptions
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions


def test_the_coefficient_comes_back_from_its_least():
    """Divergences near 0 halve it in each update; later ones above the target raise it again."""
    surrogate = SurrogateOptions(kl_coefficient=1.0, target_update_interval=2)
    agent = appo.make_agent(
        example_data.DISCRETE, create_train_step(), appo.EXPERIENCE, network=NetworkOptions((8,)), surrogate=surrogate
    )
    for _ in range(80):
        agent._adapt(tf.constant(0.0))
    least = float(agent._kl_coefficient)
    agent._adapt(tf.constant(1.0))
    assert float(agent._kl_coefficient) == pytest.approx(1.5 * least) and least > 0


def test_a_penalty_needs_a_target_that_differs():
    with pytest.raises(ValueError, match='got kl_coefficient=1.0 with a target network that equals the policy'):
        SurrogateOptions(kl_coefficient=1.0)
    assert SurrogateOptions(kl_coefficient=1.0, target_update_tau=0.5).kl_coefficient == 1.0
