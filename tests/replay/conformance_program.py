"""A replay server in a process of its own, which saves when a file asks for it: KIND PORT FOLDER."""

import pathlib
import sys
import threading

from tests.replay import conformance_test
from tests.testing.replay import DATA_SPEC
from tflearn.replay import servers
from tflearn.replay.storage import Storage


def main():
    kind, port, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    tables = Storage(conformance_test.MIRRORED, DATA_SPEC).make_tables()
    server = servers.serve(tables, port, folder / 'checkpoints', kind=kind)
    sys.stdout.write('serving\n')
    sys.stdout.flush()
    while not threading.Event().wait(0.02):
        if (folder / 'save').exists():
            server.checkpoint()
            (folder / 'save').unlink()


if __name__ == '__main__':
    main()
