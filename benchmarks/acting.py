"""What does the policy cost a collector? Batched steps of CartPole with the compiled policy, and with one in numpy.

    python -m benchmarks.acting

An actor with its episodes' metrics steps 1 to 64 environments; nothing is written. The numpy policy is the least that
a small network of dense layers needs: products, activations, the head, and random numbers of its own; it leaves out
that PPO normalizes observations. It keeps the weights in arrays, which would have to be copied whenever new ones
arrive. So its column is a bound of what such a path could gain, not a part of the library. CPU time of all threads;
sides interleaved; ratios are medians of the rounds'.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from typing import Any

# Several threads of BLAS make products of 64 rows slower, and spin.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tf_agents.trajectories import policy_step  # noqa: E402
from tf_agents.trajectories import time_step as ts  # noqa: E402

from tflearn.actors.actor import Actor, CompiledPolicy  # noqa: E402
from tflearn.actors.episode_metrics import EpisodeMetrics  # noqa: E402
from tflearn.agents import dqn, ppo  # noqa: E402
from tflearn.core.experience import Experience, Uniform  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.environments import gymnasium_env  # noqa: E402
from tflearn.networks.networks import NetworkOptions  # noqa: E402

EPSILON = 0.05


class NumpyPolicy:
    """Dense layers, then an epsilon-greedy or categorical head; with the compiled policy's checks."""

    def __init__(self, compiled: CompiledPolicy, weights: list[np.ndarray], is_greedy: bool):
        """Takes kernels and biases in turn; the head is that of DQN if `is_greedy`, else PPO's."""
        self.check, self.initial_state, self._size = compiled.check, compiled.initial_state, compiled.batch_size
        self._layers, self._is_greedy = list(zip(weights[::2], weights[1::2], strict=True)), is_greedy
        self._random = np.random.default_rng(0)

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        return self.step(time_step, policy_state)[:2]

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        outputs = self.outputs(time_step.observation)
        if self._is_greedy:
            action = outputs.argmax(1)
            explores = self._random.random(self._size) < EPSILON
            if explores.any():
                action[explores] = self._random.integers(0, outputs.shape[1], explores.sum())
            return policy_step.PolicyStep(action, policy_state, ())
        odds = np.exp(outputs - outputs.max(1, keepdims=True)).cumsum(1)
        action = (odds <= self._random.random((self._size, 1)) * odds[:, -1:]).sum(1)
        return policy_step.PolicyStep(action, policy_state, {'dist_params': {'logits': outputs}})

    def outputs(self, observation: np.ndarray) -> np.ndarray:
        """Returns Q-values or logits, float32 [B, actions]."""
        x = observation
        for i, (kernel, bias) in enumerate(self._layers):
            x = x @ kernel
            x += bias
            if i < len(self._layers) - 1:
                np.maximum(x, 0, out=x) if self._is_greedy else np.tanh(x, out=x)
        return x


def _actors(algorithm: str, num_environments: int) -> dict[str, Actor]:
    """Returns an actor of each side, with the same weights."""
    actors: dict[str, Actor] = {}
    for side in ('compiled', 'numpy'):
        environment = gymnasium_env.make('CartPole-v1', num_environments=num_environments, seed=1)
        agent: Any
        if algorithm == 'dqn':
            experience = Experience(replay=Uniform())
            settings = {'network': NetworkOptions(fc_layer_params=(100, 50)), 'epsilon': EPSILON}
            agent = dqn.make_agent(environment.specs, create_train_step(), experience, **settings)
            weights = [each.numpy() for each in agent.collect_policy.variables() if each.shape.rank]
        else:
            network = NetworkOptions(fc_layer_params=(64, 64))
            agent = ppo.make_agent(environment.specs, create_train_step(), ppo.EXPERIENCE, network=network)
            parts = ('/actor/', '/CategoricalProjectionNetwork/')
            variables = agent.collect_policy.variables()
            weights = [each.numpy() for each in variables if any(part in each.name for part in parts)]
        policy: Any = agent.collect_policy
        if side == 'numpy':
            compiled = CompiledPolicy(policy, num_environments)
            policy = NumpyPolicy(compiled, weights, algorithm == 'dqn')
        actors[side] = Actor(environment, policy, [EpisodeMetrics(num_environments)])
        actors[side].run(50)
    return actors


def main() -> int:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--steps', type=int, default=300, help='batched steps of each side in a round')
    options = parser.parse_args()
    print('| policy, environments | compiled, us | numpy, us | ratio |\n|---|---|---|---|')
    for algorithm, name in (('dqn', 'DQN 100-50'), ('ppo', 'PPO 64-64')):
        for num_environments in (1, 8, 32, 64):
            actors = _actors(algorithm, num_environments)
            micros: dict[str, list[float]] = {side: [] for side in actors}
            for _ in range(options.rounds):
                for side, actor in actors.items():
                    start = time.process_time()
                    actor.run(options.steps)
                    micros[side].append(1e6 * (time.process_time() - start) / options.steps)
            ratio = statistics.median(a / b for a, b in zip(*micros.values(), strict=True))
            both = ' | '.join(f'{statistics.median(values):.0f}' for values in micros.values())
            print(f'| {name}, {num_environments} | {both} | {ratio:.2f} |', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
