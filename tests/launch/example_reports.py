"""A report of a run as it is somewhere in the middle."""

import time

from tflearn.launch.reports import JobReport, RunReport


def example_run() -> RunReport:
    """All jobs running, with all metrics of the contract between jobs and launch."""
    now = time.time()
    replay = {'replay_size': 49_600, 'max_size': 100_000, 'inserts': 49_600, 'samples': 3_180_000}
    replay |= {'samples_per_insert': 64.13, 'samples_per_insert_target': 64.0}
    train = {'train_step': 12_400, 'num_train_steps': 20_000, 'train_steps_per_sec': 93.12, 'env_steps': 49_600}
    train |= {'loss': 0.012346, 'policy_version': 124, 'policy_lag': 1.3, 'data_wait_share': 0.12, 'secs_left': 82.0}
    evaluate = {'train_step': 12_000, 'mean_return': 342.1, 'num_episodes': 20, 'best_mean_return': 361.5}
    evaluate |= {'target_return': 475.0}
    collect = {'env_steps': 24_800, 'env_steps_per_sec': 186.2, 'policy_version': 123}
    collect |= {'environment_secs': 61.0, 'policy_secs': 30.2, 'writing_secs': 8.8}
    collectors = (collect | {'mean_return': 220.4, 'episodes': 301}, collect | {'mean_return': 242.3, 'episodes': 298})
    return RunReport(
        jobs=(
            JobReport('replay_server', 'replay_server', 'running', metrics=replay | {'time': now}),
            JobReport('train', 'train', 'running', metrics=train | {'time': now}),
            JobReport('evaluate', 'evaluate', 'running', metrics=evaluate | {'time': now}),
            *(
                JobReport(f'collect_{i}', 'collect', 'running', restarts=i, metrics=metrics | {'time': now})
                for i, metrics in enumerate(collectors)
            ),
        ),
        secs=133.0,
    )
