"""Acts with exported policies in a program that has only TensorFlow: `standalone_program.py DIRECTORY...`.

Each directory has policy/2, and inputs.npz: observations [T, B, ...] by the names of the serving signature. The actions
[T, B] by the full function and by the serving signature go to outputs.npz.
"""

import sys


class Blocked:
    """Rejects imports of tflearn and TF-Agents."""

    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('tflearn', 'tf_agents', 'tensorflow_probability'):
            raise ImportError(f'{name} is blocked')


sys.meta_path.insert(0, Blocked())

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def act(path, leaves):
    policy = tf.saved_model.load(path)
    serving = policy.signatures['serving_default']
    steps, batch_size = next(iter(leaves.values())).shape[:2]
    zeros = np.zeros(batch_size, np.float32)
    state = policy.get_initial_state(batch_size)
    served_state = policy.signatures['get_initial_state'](tf.constant(batch_size)) if state else {}
    actions, served = [], []
    for t in range(steps):
        inputs = {name: value[t] for name, value in leaves.items()}
        step_type = np.full(batch_size, 0 if t == 0 else 1, np.int32)
        step = policy.action(step_type, zeros, zeros + 1, nested(inputs), state)
        if type(step) is not dict or set(step) != {'action', 'policy_state', 'info'}:
            sys.exit(f'got {step}')
        state = step['policy_state']
        actions.append(step['action'].numpy())
        served_state = serving(**{name: tf.constant(value) for name, value in inputs.items()}, **served_state)
        served.append(served_state.pop('action').numpy())
    return {'actions': actions, 'served': served}


def nested(inputs):
    if 'observation' in inputs:
        return inputs['observation']
    speeds = (inputs['observation_speeds_0'], inputs['observation_speeds_1'])
    return {'position': inputs['observation_position'], 'speeds': speeds}


for kind in sys.argv[1:]:
    np.savez(f'{kind}/outputs.npz', **act(f'{kind}/policy/2', dict(np.load(f'{kind}/inputs.npz'))))
