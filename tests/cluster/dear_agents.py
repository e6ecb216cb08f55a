"""Agents of somebody's image, in a process: `python -m tests.cluster.dear_agents ADDRESS BYTES`.

To every request they answer at once with news, in so many bytes of JSON that cost much to read. At
/count stands how often that was.
"""

import asyncio
import json
import sys

from ddpjob import names

LEVELS = 90


def page(number: int, size: int) -> bytes:
    """An answer at `/group` or `/progress`, of one pod and about so many bytes."""
    progress = {"attempt": 0, "source": "file", "step": number}
    message = {"version": 1, "reason": "Error", "message": "dear", "more": []}
    failure = {"node_rank": 0, "exit_code": 1, "message": message}
    body = {**progress, "serial": number, "progress": progress, "failures": [failure]}
    text = json.dumps(body).encode()
    lists = b"[" * LEVELS + b"]" * LEVELS
    more = b",".join([lists] * ((size - len(text)) // (len(lists) + 1)))
    return text.replace(b'"more": []', b'"more": [' + more + b"]")


async def serve(address: str, size: int) -> None:
    """Answer until killed."""
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            is_asked = not head.startswith(b"GET /count ")
            count += is_asked
            body = page(count, size) if is_asked else b"%d" % count
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (OSError, EOFError):
            pass  # the operator has taken its request back
        finally:
            writer.close()

    server = await asyncio.start_server(answer, address, names.AGENT_PORT)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
