"""RLlib's env runner, controlled by lines on its standard input. Runs in its own environment: requirements_rllib.txt.

    sample SECS   samples CartPole-v1 in fragments of PPO's default length and answers with a JSON object: steps, secs

Its samples stay in this process, where its users' learner gets them by Ray; nothing is written to a server.
"""

import argparse
import json
import sys
import time
import warnings

import gymnasium
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner


def main() -> None:
    """Obeys until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--num_environments', type=int, required=True)
    parser.add_argument('--vectorize_mode', type=gymnasium.VectorizeMode, required=True, help="gymnasium's")
    options = parser.parse_args()
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment('CartPole-v1')
        .env_runners(
            num_envs_per_env_runner=options.num_environments,
            num_env_runners=0,
            gym_env_vectorize_mode=options.vectorize_mode,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[100, 50]))
    )
    runner = SingleAgentEnvRunner(config=config, worker_index=1)
    runner.sample()
    print(json.dumps({'version': ray.__version__}), flush=True)
    for line in sys.stdin:
        secs, steps, start = float(line.split()[1]), 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < secs:
            steps += sum(len(episode) for episode in runner.sample())
        print(json.dumps({'steps': steps, 'secs': elapsed}), flush=True)


if __name__ == '__main__':
    main()
