"""A TCP proxy of its own process, which can hold back everything: a network partition that closes no connection."""

import asyncio
import pathlib
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, partition: pathlib.Path) -> None:
    try:
        while data := await reader.read(65_536):
            while partition.exists():
                await asyncio.sleep(0.05)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(port: int, target: int, partition: pathlib.Path) -> None:
    """Forwards `port` to `target` on this machine, but nothing while the file `partition` is there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while partition.exists():
            await asyncio.sleep(0.05)
        try:
            from_server, to_server = await asyncio.open_connection('localhost', target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, to_server, partition), _pump(from_server, writer, partition))

    server = await asyncio.start_server(serve, 'localhost', port)
    async with server:
        await server.serve_forever()


if __name__ == '__main__':
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])))
