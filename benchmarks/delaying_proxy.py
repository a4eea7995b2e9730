"""TCP proxies in a process of their own, which hold back all that they forward for a fixed time."""

import asyncio
import json
import sys


class _Pump(asyncio.Protocol):
    """One direction of a connection: what comes here goes to the other end, in the pieces in which it came."""

    def __init__(self, delay_secs: float, other: '_Pump | None' = None):
        self._delay_secs, self.other = delay_secs, other
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other:
            asyncio.get_running_loop().call_later(self._delay_secs, self.other.write, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other:
            asyncio.get_running_loop().call_later(self._delay_secs, self.other.close)

    def write(self, data: bytes) -> None:
        """Sends a piece, unless the connection has ended."""
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Ends the connection, once all is sent."""
        if self._transport:
            self._transport.close()


class _Client(_Pump):
    """The same of a connection that a client opens: then one to the server is opened."""

    def __init__(self, delay_secs: float, port: int):
        super().__init__(delay_secs)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        self._opening = asyncio.ensure_future(self._open(transport))

    async def _open(self, transport: asyncio.ReadTransport) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, self.other = await loop.create_connection(lambda: _Pump(self._delay_secs, self), 'localhost', self._port)
        except OSError:
            self.close()
            return
        transport.resume_reading()


async def main(ports: dict[int, int], delay_secs: float) -> None:
    """Forwards each port to another one of this machine, and the answers, until the process is ended.

    Args:
      ports: the port to forward to, by the port that is listened to.
      delay_secs: of each direction.
    """
    for port, target in ports.items():
        await asyncio.get_running_loop().create_server(
            lambda target=target: _Client(delay_secs, target), 'localhost', port
        )
    print('forwarding', flush=True)
    await asyncio.Event().wait()


if __name__ == '__main__':
    asyncio.run(main({int(port): target for port, target in json.loads(sys.argv[1]).items()}, float(sys.argv[2])))
