"""Does a GPU compute what the CPU does, and how fast? For whoever has one: ten minutes; it prints what to send back.

    python benchmarks/gpu.py

Each case takes the same 20 train steps on the CPU, on the first GPU in each precision, and on all GPUs together; then
train steps are timed, with batches that a dataset makes on the host. On a machine without a GPU it ends with a line
that says so; `--devices=cpu` runs it there, on two logical CPUs in place of GPUs.
"""

import argparse
import dataclasses
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any

import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import learner_cases  # noqa: E402
from benchmarks.learner_cases import CASES, Case  # noqa: E402
from tflearn.core import precision, strategies  # noqa: E402
from tflearn.core.experience import BatchItems  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402

COMPARED_STEPS, TOLERANCE = 20, {'float32': 1e-3, 'bfloat16': 5e-2, 'float16': 5e-2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--devices', choices=('gpu', 'cpu'), default='gpu')
    parser.add_argument('--quick', action='store_true', help='a few steps of the smallest case')
    parser.add_argument('--json', help='where to write what is printed')
    flags = parser.parse_args()
    gpus = tf.config.list_physical_devices('GPU')
    if flags.devices == 'gpu' and not gpus:
        sys.exit('got no GPU that TensorFlow sees; need one; check the driver, or try --devices=cpu')
    if flags.devices == 'cpu':
        (cpu,) = tf.config.list_physical_devices('CPU')
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    one, count = ('gpu', len(gpus)) if flags.devices == 'gpu' else ('cpu', 2)
    sides = [('cpu', 'float32'), *((one, dtype) for dtype in TOLERANCE)]
    sides += [(f'mirrored:{count}', 'float32')] if count > 1 else []
    rows = []
    for name in ('dqn',) if flags.quick else CASES:
        for side in sides:
            rows.append({'case': name, **measured(CASES[name], *side, num_steps=20 if flags.quick else 500)})
            reference = next(row for row in rows if row['case'] == name)
            difference = abs(rows[-1]['loss'] - reference['loss']) / abs(reference['loss'])
            alike = name != 'sac' or not side[0].startswith('mirrored')  # whose replicas draw other actions
            rows[-1] |= {'difference': difference, 'agrees': difference < TOLERANCE[side[1]] if alike else None}
            print(json.dumps(rows[-1]), flush=True)
    report = json.dumps({'machine': machine(gpus), 'rows': rows}, indent=1)
    if flags.json:
        pathlib.Path(flags.json).write_text(report)
    print(f'--- please send this to those who gave you this program:\n{report}')


def measured(case: Case, strategy_name: str, dtype: str, num_steps: int) -> dict[str, Any]:
    """Returns the loss after some train steps, and the train steps per second after them."""
    strategy = strategies.make(strategy_name)
    replicas = strategy.num_replicas_in_sync
    experience = dataclasses.replace(case.experience(), batch=BatchItems(case.batch_size // replicas))
    tf.keras.utils.set_random_seed(1)
    with strategy.scope(), precision.use(dtype):
        agent = case.make_agent(case.specs, create_train_step(), experience)
    for i, variable in enumerate(agent.trainable_variables):
        if variable.shape.rank and variable.shape.rank > 1:
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 7), -0.05, 0.05))
    agent.initialize()
    data = learner_cases.batch(case)

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        items = tf.data.Dataset.from_tensor_slices(data)
        return items.batch(case.batch_size // context.num_replicas_in_sync, drop_remainder=True).repeat()

    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(agent, dataset, RunDir(folder), strategy=strategy, options=LearnerOptions(None))
        loss = learner.run(COMPARED_STEPS).loss
        begun = time.perf_counter()
        learner.run(num_steps)
        secs = time.perf_counter() - begun
    return {'side': strategy_name, 'precision': dtype, 'loss': loss, 'train_steps_per_sec': round(num_steps / secs, 1)}


def machine(gpus: list[Any]) -> dict[str, Any]:
    """Returns what decides the numbers."""
    found = {'python': platform.python_version(), 'tensorflow': tf.__version__, 'processor': platform.processor()}
    found['gpus'] = [str(tf.config.experimental.get_device_details(gpu)) for gpu in gpus]
    command = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total', '--format=csv,noheader']
    try:
        found['nvidia_smi'] = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split('\n')
    except OSError:
        found['nvidia_smi'] = []
    return found


if __name__ == '__main__':
    main()
