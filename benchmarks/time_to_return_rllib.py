"""RLlib's side of benchmarks/time_to_return.py: one run on CartPole-v1.

It has an environment of its own: requirements_rllib.txt.
Writes what `recorded_environment.read` reads: the start, which is the moment before the first `train()` of an algorithm
that is built, and each episode when its env runner sees its end.
"""

import argparse
import json
import os
import signal
import sys
import time
import warnings

import gymnasium
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    """Trains until the limit is reached, or it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--algorithm', choices=('ppo', 'impala'), required=True)
    parser.add_argument('--path', required=True, help='of the file that is written')
    parser.add_argument('--seed', type=int, required=True)
    parser.add_argument('--limit_secs', type=float, required=True)
    options = parser.parse_args()
    warnings.filterwarnings('ignore')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Ray ends its processes at exit.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    config = ppo() if options.algorithm == 'ppo' else impala()
    config.environment('CartPole-v1').debugging(seed=options.seed).reporting(min_time_s_per_iteration=0)
    path = options.path

    class Record(RLlibCallback):
        finished_steps = 0

        def on_episode_end(self, *, episode, env_runner, prev_episode_chunks, **kwargs) -> None:  # noqa: ANN001 - RLlib's
            # An episode that goes on in the next fragment is in several chunks; `t` counts over all of them.
            total = sum(chunk.get_return() for chunk in (*prev_episode_chunks, episode))
            env_steps = self.finished_steps + sum(ongoing.t for ongoing in env_runner._ongoing_episodes)
            self.finished_steps += episode.t
            _append(path, episode=[time.time(), float(total)], process=os.getpid(), env_steps=env_steps)

    algorithm = config.callbacks(Record).build_algo()
    start = time.time()
    _append(path, start=start)
    while time.time() - start < options.limit_secs:
        algorithm.train()
    algorithm.stop()
    ray.shutdown()


def ppo() -> AlgorithmConfig:
    """RLlib's tuned example, rllib/tuned_examples/ppo/cartpole_ppo.py, with two env runners."""
    return (
        PPOConfig()
        .env_runners(num_env_runners=2)
        .training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation='linear', vf_share_layers=True))
    )


def impala() -> AlgorithmConfig:
    """RLlib's tuned example, rllib/tuned_examples/impala/cartpole_impala.py, with eight environments an env runner.

    gymnasium's native vector environment steps them.
    """
    return (
        IMPALAConfig()
        .env_runners(
            num_env_runners=2,
            num_envs_per_env_runner=8,
            gym_env_vectorize_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
        )
        .training(
            train_batch_size_per_learner=500,
            grad_clip=40.0,
            grad_clip_by='global_norm',
            lr=0.0005,
            vf_loss_coeff=0.05,
            entropy_coeff=0.0,
        )
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=True))
    )


def _append(path: str, **entry: object) -> None:
    with open(path, 'a', encoding='utf-8') as lines:
        lines.write(json.dumps(entry) + '\n')


if __name__ == '__main__':
    main()
