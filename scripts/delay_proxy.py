"""A TCP proxy that delays what clients send, as a long line does: delay_proxy.py PORT TARGET-PORT MILLISECONDS

Each piece is handed on so long after it came. The line stays as wide as it is.
"""

import asyncio
import sys


async def pump(reader, writer, delay):
    queue = asyncio.Queue(maxsize=4096)
    loop = asyncio.get_running_loop()

    async def deliver():
        while True:
            due, piece = await queue.get()
            wait = due - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            if piece is None:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    task = asyncio.create_task(deliver())
    try:
        while piece := await reader.read(1 << 18):
            await queue.put((loop.time() + delay, piece))
    except ConnectionError:
        pass
    await queue.put((loop.time() + delay, None))
    try:
        await task
    except ConnectionError:
        pass


async def main():
    port, target, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000

    async def serve(reader, writer):
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target, limit=1 << 20)
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(pump(reader, there_writer, delay), pump(there_reader, writer, 0))

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


asyncio.run(main())
