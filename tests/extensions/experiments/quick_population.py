"""A population whose runs learn by counting; a program of its own too, without TensorFlow."""

import pathlib
import sys

from tflearn.extensions.experiments import runs
from tflearn.extensions.experiments.population import Population
from tflearn.extensions.experiments.tuning import Tuning

RATE, CLIP = 'optimizers.OptimizerOptions.learning_rate', 'optimizers.OptimizerOptions.gradient_clipping'
NETWORK = 'networks.NetworkOptions.fc_layer_params'
SPACE = f"""
"{RATE}" = {{low = 1e-5, high = 0.01, log = true}}
"{CLIP}" = {{low = 0.5, high = 2.5}}
"dqn.make_agent.target_update_period" = {{low = 10, high = 20}}
"experience.BatchItems.per_replica" = [64, 128, 256]
"{NETWORK}" = [[8], [16], [32]]
"""
BUDGET = 'train.StopConditions.max_env_steps = 900'
# A run that learns more in 100 steps, the nearer its learning rate is to 0.001; its checkpoint holds what it has
# learned. A rate above 0.05 fails. With the file `hold_200` beside the search a run waits before its evaluation at 200
# steps.
RUN = """
import json, math, pathlib, signal, sys
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json, write_json
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
given = json.loads(sys.argv[1])
bindings = dict(each.split(' = ') for each in given['gin_bindings'] if ' = ' in each)
rate, end = float(bindings['optimizers.OptimizerOptions.learning_rate']), bindings['train.StopConditions.max_env_steps']
if rate > 0.05:
    sys.exit('tflearn-train: error: diverged')
run_dir = RunDir(given['root_dir'])
run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
record, path = EvaluationRecord(run_dir.evaluations), run_dir.checkpoints / 'state.json'
state = read_json(path) or {'steps': 0, 'learned': 0.0}
while state['steps'] < int(end):
    state = {'steps': state['steps'] + 100, 'learned': state['learned'] + 5 - abs(math.log10(rate) + 3)}
    hold = run_dir.root.parent.parent / f"hold_{state['steps']}"
    wait_until(lambda: not hold.exists(), 'the test', 240.0, poll_secs=0.01)
    if 100 * len(record.evaluations) < state['steps']:
        record.append({'train_step': state['steps'], 'env_steps': state['steps'], 'mean_return': state['learned'],
                       'returns': [state['learned']]})
    write_json(path, state)
write_json(run_dir.done, {'reason': f'max_env_steps {end} reached', 'train_step': int(end), 'env_steps': int(end)})
"""


def population(folder, space=SPACE, size=4, generations=3, parallel=2, bindings=(BUDGET,), **settings):
    path = folder / 'space.toml'
    path.write_text(space)
    search = Tuning(folder / 'search', 'dqn_cartpole', str(path), 0, parallel=parallel, gin_bindings=bindings)
    return Population(search, size, generations, **settings)


if __name__ == '__main__':
    runs._RUN = RUN
    sys.exit(not population(pathlib.Path(sys.argv[1])).run(sys.stdout))
