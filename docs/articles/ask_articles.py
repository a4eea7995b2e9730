"""Asks a server for one of three articles: python ask_articles.py localhost:8500."""

import sys

import numpy as np

from tflearn.extensions.serving.client import PolicyClient

client = PolicyClient(sys.argv[1])
words = client.vocabularies()


def vector(part: str, names: list[str]) -> np.ndarray:
    return np.float32([name in names for name in words[part]])


user = vector('observation.user', ['User^is=Anna', 'User^at=morning', 'User^Anna_morning'])
articles = ['food', 'sports', 'politics']
items = np.zeros((1, 4, len(words['observation.items'])), np.float32)
for i, article in enumerate(articles):
    items[0, i] = vector('observation.items', [f'Article^about={article}'])
answer, version = client.predict(
    {
        'observation_user': user[np.newaxis],
        'observation_items': items,
        'observation_mask': np.int8([[1, 1, 1, 0]]),
    }
)
print(articles[answer['action'][0]], version)
