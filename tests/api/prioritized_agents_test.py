"""Every agent that learns from old items draws them by priority, in a run of `tflearn.train`."""

import functools

import pytest

import tflearn
from tests.testing import written_summaries
from tflearn.agents import awac, ddpg, discrete_sac, dqn, droq, iql, r2d2, sac, td3, tqc
from tflearn.core.experience import Slicing
from tflearn.environments import gymnasium_env
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.networks.networks import NetworkOptions

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')

DISCRETE, CONTINUOUS = 'CartPole-v1', 'Pendulum-v1'
MEMORY = Slicing(sequence_length=5, stride=3, cross_episodes=True, store_policy_state=True)
FEW, LSTM = {'network': NetworkOptions((8,))}, {'network': NetworkOptions((8,), lstm_size=(4,))}
AGENTS = {
    'dqn': (dqn, DISCRETE, FEW, Slicing()),
    'r2d2': (r2d2, DISCRETE, {**LSTM, 'loss': r2d2.R2D2Loss(burn_in_steps=1)}, MEMORY),
    'discrete_sac': (discrete_sac, DISCRETE, FEW, Slicing()),
    'sac': (sac, CONTINUOUS, FEW, Slicing()),
    'recurrent_sac': (sac, CONTINUOUS, {**LSTM, 'loss': sac.SACLoss(burn_in_steps=1)}, MEMORY),
    'tqc': (tqc, CONTINUOUS, FEW, Slicing()),
    'droq': (droq, CONTINUOUS, FEW, Slicing()),
    'td3': (td3, CONTINUOUS, FEW, Slicing(sequence_length=3)),
    'ddpg': (ddpg, CONTINUOUS, FEW, Slicing()),
    'iql': (iql, CONTINUOUS, FEW, Slicing()),
    'awac': (awac, CONTINUOUS, FEW, Slicing()),
}
FAST = ('sac', 'r2d2')


@pytest.mark.parametrize(
    'name', [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS]
)
def test_errors_of_items_become_their_priorities(name, tmp_path):
    module, environment, arguments, slicing = AGENTS[name]
    replay = tflearn.Prioritized(max_size=200, min_size=20, samples_per_insert=8.0)
    run = tflearn.train(
        make_environment=functools.partial(gymnasium_env.make, environment),
        make_agent=functools.partial(module.make_agent, **arguments),
        experience=tflearn.Experience(slicing, replay, tflearn.BatchItems(4)),
        root_dir=tmp_path,
        num_train_steps=20,
        num_episodes=1,
        exports=ExportOptions(('greedy_policy',)),
        learner_options=tflearn.LearnerOptions(summaries=tflearn.SummaryOptions(5)),
    )
    assert run.train_step == 20
    scalars = written_summaries.scalars(run.run_dir.summaries('train'))
    assert max(scalars['train/priorities_updated'].values()) >= 15 * 4
    assert max(scalars['train/priorities_not_finite'].values()) == 0
