"""One run of the suite by Stable-Baselines3 or SBX, as JSON; in an environment of its own: requirements_peers.txt.

`python -m benchmarks.suite` starts it. It imports nothing of tflearn.
"""

import argparse
import json
import os
import platform
import time
from importlib import metadata
from typing import Any

from benchmarks.suite import process as suite_process
from benchmarks.suite import zoo

_VERSIONS = {'SB3': ('stable-baselines3', 'torch'), 'SBX': ('sbx-rl', 'jax')}
_EVALUATION_ENVIRONMENTS = 10  # as many as tflearn's


def main() -> None:
    """Runs one seed and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--side', choices=zoo.MODULES, required=True)
    options = suite_process.parsed(parser)
    # Small networks take longer with more threads, above all beside other programs.
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    result = run(options.side, options.settings, options.seed)
    versions = {name: metadata.version(name) for name in (*_VERSIONS[options.side], 'gymnasium')}
    result['versions'] = {**versions, 'python': platform.python_version()}
    options.output.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')


def run(side: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Trains for the row's environment steps; returns them, the curve and the seconds of training with evaluation."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import sync_envs_normalization

    total, curve = settings['env_steps'], []
    several = {**settings['settings'], 'n_envs': _EVALUATION_ENVIRONMENTS}
    evaluation = zoo.make_environment(settings['environment'], several, suite_process.STARTS)
    evaluation.training = evaluation.norm_reward = False  # of VecNormalize

    def evaluate(model: Any) -> None:
        sync_envs_normalization(model.get_env(), evaluation)
        evaluation.seed(suite_process.STARTS)  # of the reset with which the evaluation begins
        mean, _ = evaluate_policy(model, evaluation, n_eval_episodes=settings['episodes'], deterministic=True)
        curve.append([model.num_timesteps, round(float(mean), 3)])

    class Marks(BaseCallback):  # type: ignore[misc,unused-ignore]
        def _on_step(self) -> bool:
            # The mark at the end is the policy after its last update, which comes after this call.
            if self.num_timesteps >= total * len(curve) / settings['marks'] and len(curve) < settings['marks']:
                evaluate(self.model)
            return True

    environment = zoo.make_environment(settings['environment'], settings['settings'], seed)
    model = zoo.make_model(side, settings['algorithm'], settings['settings'], environment, seed)
    start = time.monotonic()
    evaluate(model)
    model.learn(total, callback=Marks())
    evaluate(model)
    return {'env_steps': model.num_timesteps, 'train_secs': round(time.monotonic() - start, 1), 'curve': curve}


if __name__ == '__main__':
    main()
