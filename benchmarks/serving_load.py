"""Clients of a policy server, in a process of their own: each asks again as soon as it has its answer.

Reads one JSON object a line ({"address", "clients", "secs", "request": base64}) and answers each with a line of JSON:
the latencies of all requests [ms].
"""

import asyncio
import base64
import json
import sys
import time
from typing import Any

import grpc

METHOD = '/tensorflow.serving.PredictionService/Predict'
_WARM_UP_SECS = 0.3


async def measure(address: str, clients: int, secs: float, request: bytes) -> list[float]:
    """Has `clients` connections ask for `secs`, after a short time that does not count."""
    latencies: list[float] = []
    start = time.perf_counter() + _WARM_UP_SECS
    end = start + secs

    async def client(number: int) -> None:
        options = [('grpc.use_local_subchannel_pool', 1), ('tflearn.client', number)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            call = channel.unary_unary(METHOD)
            while (asked := time.perf_counter()) < end:
                await call(request, timeout=30.0)
                if asked >= start:
                    latencies.append(round((time.perf_counter() - asked) * 1e3, 4))

    await asyncio.gather(*(client(number) for number in range(clients)))
    return latencies


def main() -> None:
    """Answers the lines on stdin until it is closed."""
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        order['request'] = base64.b64decode(order['request'])
        print(json.dumps(asyncio.run(measure(**order))), flush=True)


if __name__ == '__main__':
    main()
