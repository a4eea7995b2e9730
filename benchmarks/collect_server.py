"""A process with the replay servers of `collect`: one for each side, so that none shares its server with another."""

import argparse
import json
import sys

import reverb
from tf_agents.specs import tensor_spec

from benchmarks import collect_sides
from tflearn.replay.reverb import library

MAX_SIZE = 200_000


def main() -> None:
    """Serves until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--ports', required=True, help='JSON: {side: port}')
    options = parser.parse_args()
    storage = collect_sides.storage()
    servers = []
    for side, port in json.loads(options.ports).items():
        tables = [*map(library.make_table, storage.make_tables())]
        if side == collect_sides.PEER:
            tables = [_peer_table(tensor_spec.add_outer_dim(storage.data_spec))]
        servers.append(reverb.Server(tables, port))
    print('serving', flush=True)
    sys.stdin.read()


def _peer_table(signature: tensor_spec.TensorSpec) -> reverb.Table:
    return reverb.Table(
        collect_sides.PEER_TABLE,
        max_size=MAX_SIZE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )


if __name__ == '__main__':
    main()
