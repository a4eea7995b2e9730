"""TCP proxies in a process of their own, which hold back all that they forward for a fixed time."""

import asyncio
import json
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_secs: float) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while (item := await waiting.get())[1]:
            await asyncio.sleep(max(0.0, item[0] - loop.time()))
            writer.write(item[1])
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        while data := await reader.read(65_536):
            waiting.put_nowait((loop.time() + delay_secs, data))
        waiting.put_nowait((0.0, b''))
        await writing
    except OSError:
        pass
    finally:
        writing.cancel()
        writer.close()


async def main(ports: dict[int, int], delay_secs: float) -> None:
    """Forwards each port to another one of this machine, and the answers, until the process is ended.

    Args:
      ports: the port to forward to, by the port that is listened to.
      delay_secs: of each direction.
    """

    async def serve(target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection('localhost', target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, to_server, delay_secs), _pump(from_server, writer, delay_secs))

    for port, target in ports.items():
        await asyncio.start_server(lambda *given, target=target: serve(target, *given), 'localhost', port)
    print('forwarding', flush=True)
    await asyncio.Event().wait()


if __name__ == '__main__':
    asyncio.run(main({int(port): target for port, target in json.loads(sys.argv[1]).items()}, float(sys.argv[2])))
