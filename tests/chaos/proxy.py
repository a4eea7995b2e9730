"""A TCP proxy of its own process: holds back everything, as a partition does; delays data; cuts connections."""

import asyncio
import dataclasses
import pathlib
import random
import sys


@dataclasses.dataclass
class Network:
    """What happens to data.

    Attributes:
      partition: nothing is delivered while this file is there, and no connection is closed.
      delay_secs: the delay of each piece of data.
      cut_chance: the chance of a piece of data that its connection ends with it.
    """

    partition: pathlib.Path
    delay_secs: float = 0.0
    cut_chance: float = 0.0

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one direction of a connection."""
        try:
            while data := await reader.read(65_536):
                await self.wait()
                await asyncio.sleep(self.delay_secs)
                if random.random() < self.cut_chance:
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def wait(self) -> None:
        """Waits for the end of the partition."""
        while self.partition.exists():
            await asyncio.sleep(0.05)


async def main(address: str, target: int, network: Network) -> None:
    """Forwards `address`, 'host:port', to the port `target` of this machine.

    If a server listens at this port at all addresses, this one is taken over, as long as it shares the port.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await network.wait()
        try:
            from_server, to_server = await asyncio.open_connection('localhost', target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(network.pump(reader, to_server), network.pump(from_server, writer))

    host, _, port = address.rpartition(':')
    server = await asyncio.start_server(serve, host, int(port), reuse_port=True)
    async with server:
        await server.serve_forever()


if __name__ == '__main__':
    _address, _target, _partition, *_numbers = sys.argv[1:]
    random.seed(0)
    asyncio.run(main(_address, int(_target), Network(pathlib.Path(_partition), *map(float, _numbers))))
