"""Gin's names of TF-Agents' learners, under which a program's gin files bind arguments:
they mean ours.
"""

from collections.abc import Callable
from typing import TypeVar

import gin

with gin.unlock_config():  # they register their classes when they are imported
    from tf_agents.train import learner, ppo_learner

LEARNER, PPO_LEARNER = learner.Learner, ppo_learner.PPOLearner

_Class = TypeVar('_Class', bound=type)


def in_place_of(replaced: type) -> Callable[[_Class], _Class]:
    """Returns a decorator that registers a class for gin under the name of TF-Agents' own.

    A binding such as `Learner.checkpoint_interval = 7` then counts here, also one that was parsed
    before.

    Args:
      replaced: TF-Agents' class, `LEARNER` or `PPO_LEARNER`.
    """

    def register(cls: _Class) -> _Class:
        is_interactive = gin.config._INTERACTIVE_MODE  # gin tells it nowhere else
        # In which names can be registered again.
        with gin.unlock_config(), gin.config.interactive_mode():
            registered: _Class = gin.configurable(replaced.__name__, module=replaced.__module__)(cls)
        if is_interactive:
            gin.enter_interactive_mode()
        return registered

    return register
