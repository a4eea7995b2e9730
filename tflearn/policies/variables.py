"""The variables of a policy that a learner publishes, and that a run can begin with."""

from typing import Any

import tensorflow as tf
from tf_agents.utils import common


def published_variables(policy: Any) -> list[tf.Variable]:
    """Returns the variables of a TF-Agents policy that actors need from the learner.

    These are all but the state of exploration noise, which is each actor's own: DDPG's policy makes
    it at its first action, which the learner and the server do not take.
    """
    noises = [module for module in policy.submodules if isinstance(module, common.OUProcess)]
    own = {variable.ref() for noise in noises for variable in noise.variables}
    return [variable for variable in policy.variables() if variable.ref() not in own]
