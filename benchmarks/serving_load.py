"""Clients of a policy server, in a process of their own: each asks again as soon as it has its answer.

Reads one JSON object a line ({"address", "clients", "secs", "request": base64}) and answers each with a line of JSON:
requests per second, and the median and the 99th percentile of their latencies in milliseconds.
"""

import asyncio
import base64
import json
import sys
import time
from typing import Any

import grpc
import numpy as np

METHOD = '/tensorflow.serving.PredictionService/Predict'
_WARM_UP_SECS = 0.3


async def measure(address: str, clients: int, secs: float, request: bytes) -> dict[str, float]:
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
                    latencies.append(time.perf_counter() - asked)

    await asyncio.gather(*(client(number) for number in range(clients)))
    p50, p99 = np.percentile(latencies, (50, 99)) * 1e3
    return {'rate': len(latencies) / secs, 'p50_ms': float(p50), 'p99_ms': float(p99)}


def main() -> None:
    """Answers the lines on stdin until it is closed."""
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        order['request'] = base64.b64decode(order['request'])
        print(json.dumps(asyncio.run(measure(**order))), flush=True)


if __name__ == '__main__':
    main()
