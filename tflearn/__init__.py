"""tflearn: a learner system for TensorFlow agents, fed by datasets.

The four public names are loaded on first use, so `import tflearn` stays free of TensorFlow.
"""

import importlib
from typing import Any

__version__ = '0.1.0'
__all__ = ['Experience', 'IntervalTrigger', 'Learner', 'RunDir']

_HOMES = {
    'Experience': 'tflearn.experience',
    'IntervalTrigger': 'tflearn.learner.triggers',
    'Learner': 'tflearn.learner.learner',
    'RunDir': 'tflearn.run_dir',
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module tflearn has no attribute {name!r}; it has {", ".join(__all__)}')
    return getattr(importlib.import_module(_HOMES[name]), name)
