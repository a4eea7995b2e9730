"""RLlib's IMPALA, trained for a while. Runs in its own environment: requirements_rllib.txt.

Prints a JSON object: steps that were trained on in the measured seconds, these seconds, and the version.
"""

import argparse
import json
import logging
import time
import warnings

import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

WARM_UP_SECS = 8.0


def main() -> None:
    """Trains CartPole-v1 until the measured seconds are over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--secs', type=float, required=True)
    parser.add_argument('--num_env_runners', type=int, required=True)
    parser.add_argument('--num_environments', type=int, required=True, help='of each env runner')
    parser.add_argument('--batch_steps', type=int, required=True)
    parser.add_argument('--broadcast_interval', type=int, default=1)
    parser.add_argument(
        '--vectorize_mode', type=gymnasium.VectorizeMode, default='vector_entry_point', help="gymnasium's"
    )
    options = parser.parse_args()
    warnings.filterwarnings('ignore')
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = (
        IMPALAConfig()
        .environment('CartPole-v1')
        .env_runners(
            num_env_runners=options.num_env_runners,
            num_envs_per_env_runner=options.num_environments,
            rollout_fragment_length=50,
            gym_env_vectorize_mode=options.vectorize_mode,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=options.batch_steps,
            broadcast_interval=options.broadcast_interval,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
        .reporting(min_time_s_per_iteration=1)
    )
    algorithm = config.build_algo()
    start, trained = time.perf_counter(), 0
    while time.perf_counter() - start < WARM_UP_SECS or not trained:
        trained = _trained(algorithm.train())
    start, before = time.perf_counter(), trained
    while (secs := time.perf_counter() - start) < options.secs:
        trained = _trained(algorithm.train())
    secs = time.perf_counter() - start
    print(json.dumps({'steps': trained - before, 'secs': secs, 'version': ray.__version__}), flush=True)
    algorithm.stop()
    ray.shutdown()


def _trained(result: dict) -> int:
    return int(result.get('learners', {}).get('__all_modules__', {}).get('num_env_steps_trained_lifetime', 0))


if __name__ == '__main__':
    main()
