"""TLS before a server without it, as stunnel is; in a process of its own: PORT TARGET KEY CERTIFICATE AUTHORITY."""

import asyncio
import contextlib
import ssl
import sys


async def main(port, target, key, certificate, authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader, writer):
        theirs, ours = await asyncio.open_connection('localhost', int(target))
        await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))

    async with await asyncio.start_server(serve, 'localhost', int(port), ssl=context):
        await asyncio.Event().wait()


async def _pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == '__main__':
    asyncio.run(main(*sys.argv[1:]))
