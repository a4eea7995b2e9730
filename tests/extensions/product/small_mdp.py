"""A decision process of two states, two actions and three steps: all of its episodes, and its exact values."""

import itertools

import numpy as np

from tflearn.extensions.product.evaluation import RecordedSteps

HORIZON, GAMMA = 3, 0.9
START = np.array([0.7, 0.3])
NEXT = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.6, 0.4]]])  # [state, action, next state]
REWARD = np.array([[1.0, -0.5], [0.3, 2.0]])  # [state, action]
END = np.array([[0.0, 0.2], [0.5, 0.1]])  # the probability that the episode ends after the step, [state, action]
BEHAVIOUR = np.array([[0.6, 0.4], [0.3, 0.7]])  # [state, action]
TARGET = np.array([[0.2, 0.8], [0.9, 0.1]])


def exact_value(policy, horizon=HORIZON, gamma=GAMMA):
    """Returns the value by dynamic programming."""
    return float(START @ exact_values(policy, horizon, gamma)[0][-1])


def exact_values(policy, horizon=HORIZON, gamma=GAMMA):
    """Returns v and q with 0 to `horizon` steps left: [k, state] and [k, state, action]."""
    values, q_values = [np.zeros(2)], [np.zeros((2, 2))]
    for _ in range(horizon):
        q_values.append(REWARD + gamma * (1 - END) * (NEXT @ values[-1]))
        values.append((policy * q_values[-1]).sum(axis=1))
    return values, q_values


def all_episodes():
    """Yields (probability under the behaviour policy, states, actions, whether it terminated) of each episode."""

    def go_on(probability, states, actions):
        state = states[-1]
        for action in range(2):
            p = probability * BEHAVIOUR[state, action]
            if END[state, action]:
                yield p * END[state, action], states, [*actions, action], True
            p *= 1 - END[state, action]
            if len(actions) + 1 == HORIZON:
                # Where a truncated episode ends does not matter.
                for last in range(2):
                    yield p * NEXT[state, action, last], [*states, last], [*actions, action], False
            else:
                for after in range(2):
                    yield from go_on(p * NEXT[state, action, after], [*states, after], [*actions, action])

    return list(itertools.chain.from_iterable(go_on(START[state], [state], []) for state in range(2)))


def recorded(episodes, with_behaviour=True):
    """Returns episodes as the evaluation takes them: one-hot states; a terminated one ends in state 0."""
    rows = []
    for states, actions, terminated in episodes:
        states = [*states, 0] if len(states) == len(actions) else states
        for t, state in enumerate(states):
            is_step = t < len(actions)
            action = actions[t] if is_step else 0
            ended = terminated and t == len(actions) - 1
            reward = REWARD[state, action] if is_step else 0.0
            rows.append((state, is_step, reward, 0.0 if ended else 1.0, action))
    state, is_step, reward, discount, action = map(np.array, zip(*rows, strict=True))
    return RecordedSteps(
        lengths=np.array([len(actions) + 1 for _, actions, _ in episodes]),
        observations=np.eye(2)[state],
        is_step=is_step,
        rewards=reward.astype(np.float64),
        discounts=discount,
        actions=action[:, np.newaxis].astype(np.float64),
        log_behaviour=np.log(BEHAVIOUR[state, action]) if with_behaviour else None,
        log_target=np.log(TARGET[state, action]),
        choices=TARGET[state],
        samples=np.zeros((0, len(state), 1)),
    )


def draw(num_episodes, seed):
    """Returns episodes of the behaviour policy, drawn by their probabilities."""
    known = all_episodes()
    probabilities = np.array([episode[0] for episode in known])
    drawn = np.random.default_rng(seed).choice(len(known), num_episodes, p=probabilities / probabilities.sum())
    return [known[i][1:] for i in drawn]
