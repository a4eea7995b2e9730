"""What a row of a run's data holds: the same for all its jobs."""

from typing import Any

from tf_agents.typing import types

from tflearn.actors import stored_state
from tflearn.experience import Agent, Experience


def data_spec(agent: Agent, experience: Experience) -> types.NestedTensorSpec:
    """Returns the spec of a Trajectory in the replay: the agent's, and the policy state if that is to be stored.

    Args:
      agent: of the run.
      experience: of the run.

    Raises:
      ValueError: if the policy state is to be stored, and there is none or no room for it.
    """
    spec: Any = agent.collect_data_spec
    if not experience.store_policy_state:
        return spec
    return spec.replace(policy_info=stored_state.add(spec.policy_info, agent.collect_policy.policy_state_spec))
