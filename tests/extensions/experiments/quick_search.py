"""A search whose runs write evaluations as the evaluate job does; a program of its own too, without TensorFlow."""

import pathlib
import sys

from tflearn.extensions.experiments import runs
from tflearn.extensions.experiments.tuning import Tuning

RATE = 'optimizers.OptimizerOptions.learning_rate'
SPACE = f'"{RATE}" = {{low = 1e-5, high = 0.1, log = true}}\n"dqn.make_agent.gamma" = [0.9, 0.99]\n'
BUDGET = 'train.StopConditions.max_env_steps = 1000'
# A run whose return rises faster, the nearer its learning rate is to 0.001, where its cost is 1; it continues where it
# was stopped. A rate above 0.1 fails. It ends at a return of 99. A trial goes on when the search has seen its last
# evaluation, and after two of them only without the file `hold` beside the search.
RUN = '''
import json, math, pathlib, signal, sys
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, write_atomically, write_json
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
given = json.loads(sys.argv[1])
lines = [*pathlib.Path(given['gin_file']).read_text().splitlines(), *given['gin_bindings']]
bindings = dict(each.split(' = ') for each in lines if ' = ' in each and each[0] != '#')
rate = float(bindings['optimizers.OptimizerOptions.learning_rate'])
if rate > 0.1:
    sys.exit('tflearn-train: error: diverged')
run_dir = RunDir(given['root_dir'])
write_atomically(run_dir.config, f"""from __gin__ import dynamic_registration
from tflearn.optimization import optimizers
from tflearn.jobs import train
include 'dqn_cartpole.gin'
optimizers.OptimizerOptions.learning_rate = {rate}
train.Initial.seed = 1
""")
record = EvaluationRecord(run_dir.evaluations)
search = run_dir.root.parent
def may_evaluate(steps):
    if not run_dir.root.name.startswith('trial_') or steps == 100:
        return True
    number, mark = int(run_dir.root.name[6:]), (steps - 100) // 50
    lines = (search / 'study.journal').read_text().rpartition('\\n')[0].splitlines()
    reports = [json.loads(line) for line in lines if '"intermediate_value"' in line]
    is_seen = any(each['trial_id'] == number and each['step'] >= mark for each in reports)
    return is_seen and (steps <= 200 or not (search.parent / 'hold').exists())
for steps in range(100 * (1 + len(record.evaluations)), 1001, 100):
    wait_until(lambda: may_evaluate(steps), 'the search', 120, poll_secs=0.01)
    mean = steps / 10 - 30 * abs(math.log10(rate) + 3)
    metrics = {'return_1': 1000 * rate}
    record.append(
        {'train_step': steps, 'env_steps': steps, 'mean_return': mean, 'returns': [mean], 'metrics': metrics}
    )
    if mean >= 99:
        break
reason = 'target_return 99' if mean >= 99 else 'max_env_steps 1000'
write_json(run_dir.done, {'reason': f'{reason} reached', 'train_step': steps, 'env_steps': steps})
'''


def tuning(folder, **settings):
    (folder / 'space.toml').write_text(SPACE)
    given = {'space': str(folder / 'space.toml'), 'num_trials': 3, 'gin_bindings': [BUDGET], **settings}
    return Tuning(folder / 'search', 'dqn_cartpole', **given)


if __name__ == '__main__':
    runs._RUN = RUN
    sys.exit(not tuning(pathlib.Path(sys.argv[1]), num_trials=4, parallel=2).run(sys.stdout))
