"""A replay server as a process, for tests that kill it: `python -m tests.replay.replay_program PORT CHECKPOINTS`.

It prints 'ready' once it is loaded, serves as soon as it reads a line, and ends when its standard input is closed.
"""

import pathlib
import sys

from tests.testing.replay import DATA_SPEC
from tflearn.experience import Experience, Uniform
from tflearn.replay.server import ReplayServer
from tflearn.replay.storage import Storage

EXPERIENCE = Experience(replay=Uniform(min_size=1, sampling='server'), chunk_steps=4)


def main() -> None:
    port, checkpoints = sys.argv[1:]
    tables = Storage(EXPERIENCE, DATA_SPEC).make_tables()
    _tell('ready')
    sys.stdin.readline()
    server = ReplayServer(tables, int(port), pathlib.Path(checkpoints))
    _tell('serving')
    sys.stdin.read()
    server.close()


def _tell(word: str) -> None:
    sys.stdout.write(f'{word}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    main()
