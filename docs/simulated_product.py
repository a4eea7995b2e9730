"""A simulated product, whose only client is curl: python simulated_product.py news --server=localhost:8501.

`news` shows readers one of 10 candidates of 2,000 items; `inlining` is a compiler that asks for each call of a program.
With --first_log=DIR it asks nobody: it writes decisions of its own, and what came of them, as the product's old log.
"""

import argparse
import json
import pathlib
import subprocess
import time
import uuid

import numpy as np

from tflearn.extensions.tasks import inlining, recommender

RANDOM = 0.5  # share of the random actions of the compiler's own heuristic
SMALL = 10  # instructions of a function that the heuristic inlines


def make(product: str, drift: float):  # noqa: ANN201
    """Returns the environment that stands for the world."""
    if product == 'inlining':
        return inlining.Inlining(num_functions=6, num_calls=6)
    return recommender.Recommender(recommender.embeddings(), num_candidates=10, session_steps=1, drift=drift)


def curl(url: str, body: object, *headers: str) -> dict:
    """Posts JSON; returns the answer."""
    named = [word for header in headers for word in ('--header', header)]
    command = ['curl', '--silent', '--show-error', '--fail-with-body', '--data', '@-', *named, url]
    return json.loads(
        subprocess.run(command, input=json.dumps(body), check=True, text=True, stdout=subprocess.PIPE).stdout
    )


def ask(server: str, event: str, session: str, observation: dict) -> int:
    """Returns the policy's action; the session is named as the experiment's arm, for the decision log."""
    row = {f'observation_{name}': np.asarray(value).tolist() for name, value in observation.items() if name != 'left'}
    url, names = (
        f'http://{server}/v1/models/greedy_policy:predict',
        (f'event-id: {event}', f'experiment-arm: {session}'),
    )
    return int(curl(url, {'instances': [row]}, *names)['predictions'][0])


def own(random: np.random.Generator, observation: dict) -> tuple[int, float]:
    """Returns the action of the product's old system, and its probability."""
    if 'candidates' in observation:
        candidates = np.flatnonzero(observation['candidates'])
        return int(random.choice(candidates)), 1 / len(candidates)
    likely = int(observation['cost_estimate'] < SMALL)
    action = int(random.integers(2)) if random.random() < RANDOM else likely
    return action, 1 - RANDOM / 2 if action == likely else RANDOM / 2


def logged(event: str, session: str, observation: dict, action: int, probability: float, at: float) -> dict:
    """Returns a line of a decision log."""
    line = {'id': event, 'time': at, 'arm': session, 'action': action, 'probability': probability}
    line |= {f'observation_{name}': np.asarray(value).tolist() for name, value in observation.items()}
    if 'candidates' in observation:
        line['mask'] = np.flatnonzero(line.pop('observation_candidates')).tolist()
    return line


def main() -> None:
    """Plays sessions, prints their mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('product', choices=['news', 'inlining'])
    parser.add_argument('--server', help='HOST:PORT of the REST port of tflearn-serve')
    parser.add_argument('--first_log', type=pathlib.Path, help='a directory')
    parser.add_argument('--sessions', type=int, default=500)
    parser.add_argument('--drift', type=float, default=0.0, help='news: how far the taste has turned [radians]')
    parser.add_argument('--seed', type=int, default=0)
    given = parser.parse_args()
    environment, random = make(given.product, given.drift), np.random.default_rng(given.seed)
    decisions, outcomes, total = [], [], 0.0
    for number in range(given.sessions):
        observation, _ = environment.reset(seed=given.seed * 1_000_000 + number)
        session, ended = uuid.uuid4().hex, False
        at = time.time() - 10 * (given.sessions - number) * bool(given.first_log)  # of before, one every ten seconds
        while not ended:
            event = uuid.uuid4().hex
            if given.first_log:
                action, probability = own(random, observation)
                decisions.append(logged(event, session, observation, action, probability, at))
            else:
                action = ask(given.server, event, session, observation)
            observation, reward, ended, _, _ = environment.step(action)
            total += reward
            outcome = {'event_id': event, 'reward': float(reward), 'time': at if given.first_log else time.time()}
            if given.first_log:
                outcomes.append(outcome)
            elif reward:
                curl(f'http://{given.server}/v1/outcomes', outcome)
    for name, lines in (('decisions', decisions), ('outcomes', outcomes)) if given.first_log else ():
        given.first_log.mkdir(parents=True, exist_ok=True)
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        (given.first_log / f'{name}-0.jsonl').write_text(text, encoding='utf-8')
    print(f'{given.sessions} sessions, mean return {total / given.sessions:.4f}')


if __name__ == '__main__':
    main()
