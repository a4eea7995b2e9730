"""Whether the estimators of off-policy evaluation equal those of the Open Bandit Pipeline and of Vowpal Wabbit.

    python3.11 -m venv obp_environment
    obp_environment/bin/pip install -r benchmarks/requirements_obp.txt
    obp_environment/bin/pip install --no-deps obp==0.5.7  # it pins a torch that Python 3.11 does not have
    obp_environment/bin/python -m benchmarks.off_policy_peers [--vw_file=FILE ...]

On the small data set of the Open Bandit Pipeline (its four logs of 10,000 decisions of two policies in two campaigns)
each side gets the same policy and the same Q values. Vowpal Wabbit evaluates a deterministic policy (--cb --eval
--cb_type ips) on the same logs, and on each FILE of its own format (`action:cost:probability | features`), and always
the first item on DSJSON of which most decisions were dropped (pdrop). It prints both sides' estimates, and ends with 1
if two differ by more than 1e-6 (Vowpal Wabbit's float32), or 1e-9 (the others).
"""

import argparse
import json
import logging
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from tflearn.extensions.product import estimators
from tflearn.extensions.product.estimators import Episodes

_LARGEST_RATIO = 2.0
# Name, one side's estimate, the other's, and by how much they may differ.
_Row = tuple[str, float, float, float]


def _episodes(rewards: np.ndarray, ratios: np.ndarray) -> Episodes:
    with np.errstate(divide='ignore'):
        return Episodes(rewards[:, np.newaxis].astype(np.float64), np.log(ratios)[:, np.newaxis], 1.0)


def _open_bandit(behaviour: str, campaign: str) -> Iterator[_Row]:
    from obp import dataset, ope
    from sklearn.linear_model import LogisticRegression

    log = dataset.OpenBanditDataset(behavior_policy=behaviour, campaign=campaign).obtain_batch_bandit_feedback()
    num, num_actions, positions = log['n_rounds'], log['n_actions'], int(log['position'].max()) + 1
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 0.5, (1, num_actions, positions)) + 0.3 * rng.normal(0, 1, (num, num_actions, 1))
    policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    model = ope.RegressionModel(LogisticRegression(max_iter=1000), num_actions, positions, log['action_context'])
    q_values = model.fit_predict(
        context=log['context'], action=log['action'], reward=log['reward'], position=log['position'],
        pscore=log['pscore'], n_folds=2, random_state=0,
    )  # fmt: skip
    index = np.arange(num), log['action'], log['position']
    episodes = _episodes(log['reward'], policy[index] / log['pscore'])
    values = (policy * q_values).sum(axis=1)[np.arange(num), log['position']]
    arrays = q_values[index][:, np.newaxis], values[:, np.newaxis]
    sides = {
        'importance sampling': (estimators.importance_sampling(episodes), ope.InverseProbabilityWeighting()),
        'weighted IS': (
            estimators.weighted_importance_sampling(episodes),
            ope.SelfNormalizedInverseProbabilityWeighting(),
        ),
        'direct method': (estimators.doubly_robust(episodes, *arrays, 0.0), ope.DirectMethod()),
        'doubly robust': (estimators.doubly_robust(episodes, *arrays), ope.DoublyRobust()),
        'switch doubly robust': (
            estimators.doubly_robust(episodes, *arrays, _LARGEST_RATIO),
            ope.SwitchDoublyRobust(tau=_LARGEST_RATIO),
        ),
    }
    given: dict[str, Any] = {name: log[name] for name in ('reward', 'action', 'position', 'pscore')}
    given |= {'action_dist': policy, 'estimated_rewards_by_reg_model': q_values}
    for name, (ours, theirs) in sides.items():
        other = theirs.estimate_policy_value(**given)
        yield f'{behaviour}/{campaign}: {name}', float(ours(np.ones((1, num)))[0]), float(other), 1e-9
    lines = [
        f'{action + 1}:{-reward}:{probability} | c:{i % 7}'
        for i, (action, reward, probability) in enumerate(zip(log['action'], log['reward'], log['pscore'], strict=True))
    ]
    yield _vowpal_wabbit(f'{behaviour}/{campaign}', lines, num_actions)


def _vowpal_wabbit(name: str, lines: list[str], num_actions: int) -> _Row:
    """Returns the mean cost of a policy that takes the actions 1, 2, ... in turn, by importance sampling."""
    import vowpalwabbit

    workspace = vowpalwabbit.Workspace(f'--cb {num_actions} --eval --cb_type ips --quiet')
    chosen = np.arange(len(lines)) % num_actions + 1
    for action, line in zip(chosen, lines, strict=True):
        workspace.learn(f'{action} {line}')
    theirs = workspace.get_sum_loss() / workspace.get_weighted_examples()
    workspace.finish()
    logged = np.array([line.split('|')[0].split()[0].split(':') for line in lines], np.float64)
    ratios = (logged[:, 0] == chosen) / logged[:, 2]
    ours = estimators.importance_sampling(_episodes(logged[:, 1], ratios))(np.ones((1, len(lines))))[0]
    return f'{name}: importance sampling, Vowpal Wabbit', float(ours), float(theirs), 1e-6


def _subsampled() -> _Row:
    """Returns the mean cost of always the first item, in DSJSON without nine of ten decisions that have no cost."""
    import vowpalwabbit

    random = np.random.default_rng(0)
    lines, costs, ratios, weights = [], [], [], []
    for _ in range(10_000):
        num = int(random.integers(2, 4))
        index, dropped = int(random.integers(num)), 0.9
        if random.random() < (0.5 if index == 0 else 0.2):
            dropped = 0.0
        elif random.random() < dropped:
            continue
        cost = -float(dropped == 0)
        event = {'_label_cost': cost, '_label_probability': 1 / num, '_label_Action': index + 1, '_labelIndex': index}
        event |= {'pdrop': dropped, 'a': list(range(1, num + 1)), 'p': [1 / num] * num}
        event |= {'c': {'_multi': [{'item': str(i)} for i in range(num)]}}
        lines.append(json.dumps(event))
        costs.append(cost)
        ratios.append(num * float(index == 0))
        weights.append(1 / (1 - dropped))
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
        print(*lines, sep='\n', file=file, flush=True)
        # Without a model it takes the first item.
        workspace = vowpalwabbit.Workspace(f'--cb_adf --cb_type ips -t --dsjson -d {file.name} --quiet')
        theirs = workspace.get_sum_loss() / workspace.get_weighted_examples()
        workspace.finish()
    estimate = estimators.importance_sampling(_episodes(np.array(costs), np.array(ratios)))
    ours = estimate(np.array([weights]))[0]
    return 'subsampled: importance sampling, Vowpal Wabbit', float(ours), float(theirs), 1e-6


def main() -> None:
    """Prints the table; the exit status says whether all are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--vw_file', type=pathlib.Path, nargs='*', default=[], help='in the format of --cb')
    options = parser.parse_args()
    warnings.simplefilter('ignore')
    logging.disable(logging.INFO)
    rows = [
        row
        for behaviour in ('random', 'bts')
        for campaign in ('men', 'women')
        for row in _open_bandit(behaviour, campaign)
    ]
    rows.append(_subsampled())
    for path in options.vw_file:
        lines = [line for line in path.read_text(encoding='utf-8').splitlines() if ':' in line.split('|')[0]]
        num_actions = max((int(line.split(':')[0]) for line in lines), default=0)
        if num_actions < 1:
            sys.exit(f'got {path} without a line such as `1:0.5:0.25 | features`; need the format of --cb')
        rows.append(_vowpal_wabbit(path.name, lines, num_actions))
    print('| log: estimator | tflearn | the other | relative difference |\n|---|---|---|---|')
    wrong = 0
    for name, ours, theirs, most in rows:
        difference = abs(ours - theirs) / max(abs(theirs), 1e-12)
        wrong += difference > most
        print(f'| {name} | {ours:.12g} | {theirs:.12g} | {difference:.1e} |')
    sys.exit(f'{wrong} of {len(rows)} differ' if wrong else 0)


if __name__ == '__main__':
    main()
