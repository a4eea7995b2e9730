"""What the agents' networks compute, in float64 numpy: independent of TensorFlow, for tests of losses."""

import types

import numpy as np


def _weights(variables, part):
    """Kernels and biases of the variables whose name has `part`, in their order."""
    return [variable.numpy().astype(np.float64) for variable in variables if part in variable.name]


def mlp(inputs, weights, activation=np.tanh, last=False):
    """Applies layers of (kernel, bias); the last one without an activation if `last`."""
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    for i, (kernel, bias) in enumerate(layers):
        inputs = inputs @ kernel + bias
        if not (last and i == len(layers) - 1):
            inputs = activation(inputs)
    return inputs


def relu(inputs):
    return np.maximum(inputs, 0.0)


class Policy:
    """The distribution of an `ActorValueNetwork`'s or an actor's action, and the value.

    Attributes:
      log_probs: of discrete actions, [..., choices]; None for continuous ones.
      mode: of continuous actions, the mean; of discrete ones the index.
    """

    def __init__(self, network, observation, bounds=(-1.0, 1.0), activation=np.tanh):
        variables = network.variables
        observation = np.asarray(observation, np.float64)
        encoder = [v for v in variables if '/actor/' in v.name or 'EncodingNetwork' in v.name]
        features = mlp(observation, [v.numpy().astype(np.float64) for v in encoder], activation)
        self.log_probs = None
        if logits := _weights(variables, 'logits'):
            values = features @ logits[0] + logits[1]
            self.log_probs = values - np.logaddexp.reduce(values, axis=-1, keepdims=True)
            self.mode = values.argmax(-1)
        else:
            kernel, bias = _weights(variables, 'means_projection')
            half, center = (bounds[1] - bounds[0]) / 2, (bounds[1] + bounds[0]) / 2
            self.mode = center + half * np.tanh(features @ kernel + bias)
            (scale,) = _weights(variables, 'bias_layer')
            self.scale = np.log1p(np.exp(scale))
        self.value = None
        if value := _weights(variables, '/value/'):
            kernel, bias = _weights(variables, '/head/')
            self.value = (mlp(observation, value, activation) @ kernel + bias)[..., 0]

    def log_prob(self, action):
        if self.log_probs is not None:
            return np.take_along_axis(self.log_probs, np.asarray(action)[..., None], -1)[..., 0]
        z = (np.asarray(action, np.float64) - self.mode) / self.scale
        return (-0.5 * z**2 - np.log(self.scale) - 0.5 * np.log(2 * np.pi)).sum(-1)

    def entropy(self):
        if self.log_probs is not None:
            return -(np.exp(self.log_probs) * self.log_probs).sum(-1)
        return np.broadcast_to((0.5 * np.log(2 * np.pi * np.e) + np.log(self.scale)).sum(), self.mode.shape[:-1])


def members(critics):
    """Each network of an ensemble of critics: its `variables` are kernels and biases in turn."""
    layers = critics._layers
    return [
        types.SimpleNamespace(
            variables=[layer.each(part)[i] for layer in layers for part in (layer._kernels, layer._biases)]
        )
        for i in range(critics._options.num)
    ]


def critic(network, observation, action=None):
    """A critic's values: of continuous actions [...], or of all discrete ones [..., choices] if there is no action."""
    weights = [variable.numpy().astype(np.float64) for variable in network.variables]
    inputs = np.asarray(observation, np.float64)
    if action is None:
        return mlp(inputs, weights, relu, last=True)
    inputs = np.concatenate([inputs, np.asarray(action, np.float64)], -1)
    return mlp(inputs, weights, relu, last=True)[..., 0]


def least(critics, observation, action, is_discrete):
    """The lesser of critics' values of recorded actions; of an ensemble, or of single ones."""
    networks = critics if isinstance(critics, list) else members(critics)
    if not is_discrete:
        return np.min([critic(network, observation, action) for network in networks], axis=0)
    values = np.min([critic(network, observation) for network in networks], axis=0)
    return np.take_along_axis(values, np.asarray(action)[..., None], -1)[..., 0]
