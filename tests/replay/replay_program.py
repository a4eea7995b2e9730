"""A replay server as a process, for tests that kill it: `python -m tests.replay.replay_program PORT CHECKPOINTS`.

It prints 'serving' as soon as it serves, which it does for five minutes.
"""

import pathlib
import sys
import threading

from tests.testing.replay import DATA_SPEC
from tflearn.core.experience import Experience, Uniform
from tflearn.replay.reverb.server import ReplayServer
from tflearn.replay.storage import Storage

EXPERIENCE = Experience(replay=Uniform(min_size=1, sampling='server'), chunk_steps=4)


def main() -> None:
    port, checkpoints = sys.argv[1:]
    tables = Storage(EXPERIENCE, DATA_SPEC).make_tables()
    server = ReplayServer(tables, int(port), pathlib.Path(checkpoints))
    sys.stdout.write('serving\n')
    sys.stdout.flush()
    threading.Event().wait(300)
    server.close()


if __name__ == '__main__':
    main()
