"""The loop of ml-compiler-opt's main trainer: a compiler that decides by the newest TFLite model, rounds of training.

Here a task of ours stands for the compiler.
"""

# First: TF-Agents needs Keras 2, which it chooses on Python 3.12 and later.
import tflearn  # isort: split

import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.agents import ppo
from tflearn.core import types
from tflearn.extensions.tasks import inlining
from tflearn.networks import quantiles
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import products
from tflearn.policies.exporter import PolicyExporter

experience = tflearn.Experience(replay=tflearn.Queue(training=tflearn.Iteration(num_epochs=4, minibatch_steps=64)))
layers = quantiles.from_environment(inlining.make, num_steps=200)  # or quantiles.from_files('vocab')
network = NetworkOptions(fc_layer_params=(40, 40, 20), preprocessing_layers=layers)
inliner = ppo.make_agent(types.specs_of(inlining.make), tflearn.create_train_step(), experience, network=network)
exporter = PolicyExporter(inliner.collect_policy, pathlib.Path('runs/inliner/policies/collect_policy'))
options = products.ProductOptions(parameters=True, names={'action': 'inlining_decision'})


def compile_module(module: inlining.Inlining, decide: Callable) -> trajectory.Trajectory:
    """Returns the episode [T, ...] of a module in which `decide` inlines."""
    (features, _), ended, now, rows = module.reset(), False, ts.StepType.FIRST, []
    while not ended:
        decision = decide(**{name: value[np.newaxis] for name, value in features.items()})
        action, info = decision['inlining_decision'][0], {'dist_params': {'logits': decision['logits'][0]}}
        next_features, reward, ended, _, _ = module.step(action)
        after = ts.StepType.LAST if ended else ts.StepType.MID
        rows.append(
            trajectory.Trajectory(now, features, action, info, after, np.float32(reward), np.float32(not ended))
        )
        features, now = next_features, after
    return tf.nest.map_structure(lambda *parts: np.stack(parts), *rows)


def compile_modules(number: int) -> list[trajectory.Trajectory]:
    model = pathlib.Path('runs/inliner/models', str(number))
    options.save(exporter.export(learner.step, {}), model)
    decide = tf.lite.Interpreter(str(model / 'model.tflite')).get_signature_runner('action')
    module = inlining.Inlining(num_functions=8, num_calls=12)
    return [compile_module(module, decide) for _ in range(32)]


source = tflearn.RoundSource(inliner, experience)
with tflearn.Learner(inliner, source, tflearn.RunDir('runs/inliner')) as learner:
    rounds = tflearn.train_rounds(learner, source, compile_modules, num_rounds=2)
