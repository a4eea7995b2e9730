"""The losses of TD3, TD3+BC, ReBRAC and DDPG in float64 numpy, computed from an agent's weights."""

import dataclasses

import numpy as np
from tf_agents.trajectories import time_step as ts

from tests.agents import oracles


def network(variables, inputs):
    """Returns the outputs of layers of kernels and biases, with relu in between, before the last activation."""
    layers = [variable.numpy().astype(np.float64) for variable in variables]
    for i in range(0, len(layers), 2):
        inputs = inputs @ layers[i] + layers[i + 1]
        if i + 2 < len(layers):
            inputs = np.maximum(inputs, 0.0)
    return inputs


@dataclasses.dataclass(frozen=True)
class Losses:
    """The settings of the losses, for one tensor of observations and one of actions, within an episode."""

    gamma: float
    reward_scale: float
    sigma: float
    clip: float
    alpha: float | None
    beta: float = 0.0  # of the items whose last row has an action

    def __call__(self, agent, data, noise, weights):
        """Returns the losses of the critics and of the actor: weighted means over a batch [B, n + 1, ...]."""
        spec = agent.action_spec
        low, high = (np.broadcast_to(bound, spec.shape).astype(np.float64) for bound in (spec.minimum, spec.maximum))
        half = (high - low) / 2

        def act(actor, observation):
            return (low + high) / 2 + half * np.tanh(network(actor.variables, observation))

        def value(critic, observation, action):
            return network(critic.variables, np.concatenate([observation, action], axis=1))[:, 0]

        observation, action, reward = (
            np.asarray(part, np.float64) for part in (data.observation, data.action, data.reward)
        )
        num_steps = reward.shape[1] - 1
        returns = sum(self.gamma**t * reward[:, t] for t in range(num_steps))
        last, first, taken = observation[:, -1], observation[:, 0], action[:, 0]
        smoothed = act(agent._target_actor, last) + half * np.clip(self.sigma * noise, -self.clip, self.clip)
        smoothed = np.clip(smoothed, low, high)
        bootstrap = np.min([value(critic, last, smoothed) for critic in oracles.members(agent._target_critics)], axis=0)
        follows = np.asarray(data.step_type)[:, -1] != ts.StepType.LAST
        bootstrap -= self.beta * follows * (((smoothed - action[:, -1]) / half) ** 2).mean(axis=1)
        targets = self.reward_scale * returns + self.gamma**num_steps * bootstrap
        critic_losses = sum((targets - value(critic, first, taken)) ** 2 for critic in oracles.members(agent._critics))
        own = act(agent._actor, first)
        actor_losses = -value(oracles.members(agent._critics)[0], first, own)
        if self.alpha is not None:
            scale = self.alpha / np.abs(value(oracles.members(agent._critics)[0], first, taken)).mean()
            actor_losses = scale * actor_losses + (((own - taken) / half) ** 2).mean(axis=1)
        return (weights * critic_losses).mean(), (weights * actor_losses).mean()
