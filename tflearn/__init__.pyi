"""The public names and where they are defined. Type checkers read this file, and so does `__init__.py`."""

from tflearn.api.training import TrainedRun, train
from tflearn.core.experience import (
    BatchItems,
    BatchSteps,
    Experience,
    Iteration,
    Prioritization,
    Prioritized,
    Queue,
    Reuse,
    Slicing,
    Uniform,
)
from tflearn.core.strategies import make as make_strategy
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments.check import check_environment
from tflearn.extensions.experiments.comparison import compare
from tflearn.extensions.experiments.policies import train_policies
from tflearn.files.run_dir import RunDir
from tflearn.jobs.evaluate_settings import Plateau
from tflearn.jobs.policy_evaluation import evaluate
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.metrics import TrainResult
from tflearn.learner.rounds import RoundSource, train_rounds
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.learner.triggers import PeriodicAction
from tflearn.policies.policy_function import PolicyFunction, load_policy
from tflearn.sampling.source import Source

__all__ = [
    'BatchItems',
    'BatchSteps',
    'EnvironmentSpecs',
    'Experience',
    'Iteration',
    'Learner',
    'LearnerOptions',
    'LoopOptions',
    'PeriodicAction',
    'Plateau',
    'PolicyFunction',
    'Prioritization',
    'Prioritized',
    'Queue',
    'Reuse',
    'RoundSource',
    'RunDir',
    'Slicing',
    'Source',
    'StopConditions',
    'SummaryOptions',
    'TrainResult',
    'TrainedRun',
    'Uniform',
    'check_environment',
    'compare',
    'create_train_step',
    'evaluate',
    'load_policy',
    'make_strategy',
    'train',
    'train_policies',
    'train_rounds',
]

__version__: str
