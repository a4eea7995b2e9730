"""tflearn: a learner system for TensorFlow agents, fed by datasets. Installed by the distribution tflearn-agents.

The public names are loaded on first use, so `import tflearn` stays free of TensorFlow.
"""

import importlib
import os
import pathlib
import sys
import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tflearn.core.errors import UserImportError

if TYPE_CHECKING:
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
    from tflearn.experiments.comparison import compare
    from tflearn.experiments.policies import train_policies
    from tflearn.files.run_dir import RunDir
    from tflearn.learner.learner import Learner, LearnerOptions
    from tflearn.learner.metrics import TrainResult
    from tflearn.learner.rounds import RoundSource, train_rounds
    from tflearn.learner.stop_conditions import StopConditions
    from tflearn.learner.summaries import SummaryOptions
    from tflearn.learner.train_loop import LoopOptions
    from tflearn.learner.triggers import EndTrigger, IntervalTrigger, StepsTrigger, TimeTrigger, TotalTrigger
    from tflearn.policies.policy_function import PolicyFunction, load_policy
    from tflearn.sampling.source import Source

__version__ = '0.1.0'
__all__ = [
    'BatchItems',
    'BatchSteps',
    'EndTrigger',
    'EnvironmentSpecs',
    'Experience',
    'IntervalTrigger',
    'Iteration',
    'Learner',
    'LearnerOptions',
    'LoopOptions',
    'PolicyFunction',
    'Prioritization',
    'Prioritized',
    'Queue',
    'Reuse',
    'RoundSource',
    'RunDir',
    'Slicing',
    'Source',
    'StepsTrigger',
    'StopConditions',
    'SummaryOptions',
    'TimeTrigger',
    'TotalTrigger',
    'TrainResult',
    'TrainedRun',
    'Uniform',
    'check_environment',
    'compare',
    'create_train_step',
    'load_policy',
    'make_strategy',
    'train',
    'train_policies',
    'train_rounds',
]

# Module -> the public names that it defines, once more: those above are for type checkers only.
_NAMES = {
    'api.training': ('TrainedRun', 'train'),
    'core.experience': (
        'BatchItems',
        'BatchSteps',
        'Experience',
        'Iteration',
        'Prioritization',
        'Prioritized',
        'Queue',
        'Reuse',
        'Slicing',
        'Uniform',
    ),
    'learner.learner': ('Learner', 'LearnerOptions'),
    'learner.stop_conditions': ('StopConditions',),
    'learner.summaries': ('SummaryOptions',),
    'learner.train_loop': ('LoopOptions',),
    'learner.metrics': ('TrainResult',),
    'learner.rounds': ('RoundSource', 'train_rounds'),
    'learner.triggers': ('EndTrigger', 'IntervalTrigger', 'StepsTrigger', 'TimeTrigger', 'TotalTrigger'),
    'policies.policy_function': ('PolicyFunction', 'load_policy'),
    'environments.check': ('check_environment',),
    'experiments.comparison': ('compare',),
    'experiments.policies': ('train_policies',),
    'files.run_dir': ('RunDir',),
    'core.train_step': ('create_train_step',),
    'core.types': ('EnvironmentSpecs',),
    'sampling.source': ('Source',),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names}
_HOMES['make_strategy'] = ('core.strategies', 'make')


if not TYPE_CHECKING:  # A type checker would take it for a definition of every name.

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f'module tflearn has no attribute {name!r}; it has {", ".join(__all__)}')
        module, attribute = _HOMES[name]
        return getattr(importlib.import_module(f'tflearn.{module}'), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _warn_of_namesake() -> None:
    """Warns if the other distribution that is imported as `tflearn` is installed too: both write to one folder."""
    try:
        other = metadata.distribution('tflearn')
    except metadata.PackageNotFoundError:
        return
    here, there = pathlib.Path(__file__).parent, pathlib.Path(str(other.locate_file(''))).resolve()
    warnings.warn(
        f'got two distributions that are imported as tflearn: tflearn-agents, which was imported (from {here}), and '
        f'tflearn {other.version} (in {there}); need only one; run `pip uninstall tflearn`, then install '
        'tflearn-agents again',
        stacklevel=3,  # where it is imported
    )


def _use_keras_2() -> None:
    """Lets `tf.keras` be Keras 2, as TF-Agents needs: TensorFlow 2.16 and later read this variable when imported.

    Raises:
      ImportError: if it is Keras 3 already, or shall be.
    """
    wanted = os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
    tensorflow = sys.modules.get('tensorflow')
    is_late = tensorflow is not None and tensorflow.keras.layers.Dense.__module__.startswith('keras.')
    if is_late or wanted not in ('1', 'true', 'True'):
        raise UserImportError(
            'got Keras 3 as tf.keras; need Keras 2 (the package tf-keras): set the environment variable '
            'TF_USE_LEGACY_KERAS=1, or import tflearn before tensorflow'
        )


_warn_of_namesake()
if sys.version_info >= (3, 12):  # where TensorFlow is 2.21
    _use_keras_2()
