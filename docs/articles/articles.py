"""Writes articles.vw: 6,000 decisions of a page that prefers the first article."""

import random

random.seed(1)
LIKED = {'Tom': {'morning': 'politics', 'evening': 'music'}, 'Anna': {'morning': 'sports', 'evening': 'politics'}}
with open('articles.vw', 'w') as file:
    for _ in range(6_000):
        user, time = random.choice(['Tom', 'Anna']), random.choice(['morning', 'evening'])
        articles = random.sample(['politics', 'sports', 'music', 'food'], random.choice([2, 3, 4]))
        shown = 0 if random.random() < 0.5 else random.randrange(len(articles))
        probability = 0.5 / len(articles) + 0.5 * (shown == 0)
        clicked = random.random() < (0.6 if articles[shown] == LIKED[user][time] else 0.1)
        print(f'shared |User is={user} at={time} {user}_{time}', file=file)
        for i, article in enumerate(articles):
            label = f'{i}:{-int(clicked)}:{probability} ' if i == shown else ''
            print(f'{label}|Article about={article}', file=file)
        print(file=file)
