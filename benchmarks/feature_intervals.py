"""How often the interval of a feature's importance (`tflearn-evaluate --feature_importance`) holds the loss.

Worlds of four contexts, of which the policy knows the feature that says which it is, and of which the log is another
policy. A world has few kinds of decisions (context, action, reward), so a log is drawn by their numbers. The loss is
that of the decisions that were drawn, as the interval says.

.venv/bin/python -m benchmarks.feature_intervals [--logs=1000] [--json=FILE] [--seed=0]
"""

import dataclasses

import numpy as np

from benchmarks import command_line
from tflearn.core import confidence_sequences as cs
from tflearn.extensions.product import feature_importance

SIZES = [100, 300, 1_000, 3_000, 10_000, 30_000]
CONTEXTS = 4
_LEAST = 1e-9  # a mean of 0 is divided by


@dataclasses.dataclass(frozen=True)
class World:
    """A world of clicks, or of failures.

    Attributes:
      rate: of a click on another action than the context's best.
      best: of a click on that one.
      num_actions: A.
      log_epsilon: the share of random actions of the log, whose own action is 0 in each context.
      epsilon: that of the policy, which takes the best action of each context.
      unsupported: whether the log never takes the best action of the last context.
    """

    rate: float
    best: float
    num_actions: int = 4
    log_epsilon: float = 0.3
    epsilon: float = 0.05
    unsupported: bool = False


WORLDS = {
    'clicks 10 and 20%, even log': World(0.1, 0.2, log_epsilon=1.0),
    'clicks 10 and 20%': World(0.1, 0.2),
    'clicks 1 and 5%': World(0.01, 0.05),
    'clicks 0.3 and 1%': World(0.003, 0.01),
    'failures 2 and 1%': World(0.98, 0.99),
    'a greedy policy': World(0.1, 0.2, epsilon=0.0),
    'little exploration': World(0.1, 0.2, log_epsilon=0.02),
    '100 actions': World(0.1, 0.3, num_actions=100),
    'an action that was never tried': World(0.1, 0.4, unsupported=True),
    'nothing differs': World(0.1, 0.1),
}


def held(world: World, size: int, num_logs: int, random: np.random.Generator) -> float:
    """Returns the share of the logs whose interval holds the loss."""
    actions, contexts = world.num_actions, np.arange(CONTEXTS)
    even = np.ones((CONTEXTS, actions)) / actions
    best = np.eye(actions)[contexts % actions]
    policy = (1 - world.epsilon) * best + world.epsilon * even
    shuffled = np.broadcast_to(policy.mean(axis=0), policy.shape)
    tried = np.ones((CONTEXTS, actions))
    tried[-1, contexts[-1] % actions] = not world.unsupported
    log = (1 - world.log_epsilon) * np.eye(actions)[np.zeros(CONTEXTS, int)]
    log += world.log_epsilon * tried / tried.sum(axis=1, keepdims=True)
    rates = np.where(best > 0, world.best, world.rate)
    chances = (log[..., np.newaxis] * np.stack([1 - rates, rates], axis=-1)).reshape(-1) / CONTEXTS
    loss = ((policy - shuffled) * rates).sum(axis=1)
    differs = np.maximum(shuffled - policy, 0).sum(axis=1)
    context, action, reward = np.unravel_index(np.arange(len(chances)), (CONTEXTS, actions, 2))
    kinds = np.flatnonzero(chances)
    mu = log[context, action][kinds]
    weights = policy[context, action][kinds] / mu, shuffled[context, action][kinds] / mu
    halves = feature_importance.halves(weights, reward[kinds].astype(float))
    counts = random.multinomial(size, chances, num_logs)[:, kinds].astype(float)
    known, lost = (counts @ each[context[kinds]] / size for each in (differs, loss))
    inside = [
        # As `interval`, which needs no search for its ends to tell on which side of them the loss is.
        all(
            cs.likelihood_ratios(cs.Variable(half, 0.0), counts[i : i + 1], max(mean, _LEAST))[0] < cs.LIKELIHOOD_RATIO
            for half, mean in zip(halves, ((known[i] + lost[i]) / 2, (known[i] - lost[i]) / 2), strict=True)
        )
        for i in range(num_logs)
    ]
    return float(np.mean(inside))


def main() -> None:
    """Runs the benchmark and prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--logs', type=int, default=1_000, help='logs of each world and size')
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    print('| world | ' + ' | '.join(f'{size:,}' for size in SIZES) + ' |\n' + '|---' * (len(SIZES) + 1) + '|')
    rows = {}
    for number, (name, world) in enumerate(WORLDS.items()):
        random = np.random.default_rng([options.seed, number])
        rows[name] = [held(world, size, options.logs, random) for size in SIZES]
        print(f'| {name} | {" | ".join(f"{share:.1%}" for share in rows[name])} |', flush=True)
    print(f'least {min(map(min, rows.values())):.1%}, greatest {max(map(max, rows.values())):.1%}')
    command_line.write(options.json, {'logs': options.logs, 'sizes': SIZES, 'worlds': rows})


if __name__ == '__main__':
    main()
