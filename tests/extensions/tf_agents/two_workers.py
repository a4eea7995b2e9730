"""A program for workers_test: one worker of TF_CONFIG, which trains with the drop-in. Arguments: root, directory."""

import json
import os
import pathlib
import sys

from tests.learner import worker_program
from tflearn.core import strategies
from tflearn.core.background import Watchdog
from tflearn.extensions.tf_agents import tf_agents_learner as learner


def main(root, directory):
    strategy = strategies.make('multi_worker', timeout_secs=120)
    with strategy.scope():
        agent = worker_program.make_agent()
    worker = strategies.layout(strategy).worker
    dataset_fn = worker_program.dataset_fn(0, None)
    trained = learner.Learner(
        root, agent.train_step_counter, agent, dataset_fn, checkpoint_interval=2, summary_interval=4, strategy=strategy
    )
    facts = {'restored': int(trained.train_step_numpy), 'loss': float(trained.run(7).loss)}
    for _ in range(20):  # each saves, so that both write at the same moments
        trained.run(2)
    trained.close()
    facts |= {'step': int(trained.train_step_numpy)}
    (pathlib.Path(directory) / f'{worker}.json').write_text(json.dumps(facts))


if __name__ == '__main__':
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', '')
    with Watchdog(200).guard('this program'):  # also if the test that started it is gone
        main(*sys.argv[1:])
