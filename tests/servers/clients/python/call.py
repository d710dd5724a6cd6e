"""Calls one tool with the official Python SDK and prints what it saw, one JSON object a line.

    call.py URL TOKEN TOOL JSON_ARGS [--mode auto|legacy|VERSION] [--expect-error]

Lines: {"protocolVersion": ...}, {"tools": [...]}, {"result": {...}}. Exits with 1 and one line on
standard error if anything fails, a tool's own error among it; with --expect-error the other way
round, and the error is the last line, as {"error": ...}.
"""

import argparse
import asyncio
import json
import logging
import sys

from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Calls one tool with the official Python SDK")
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("tool")
    parser.add_argument("json_args", type=json.loads)
    parser.add_argument("--mode", default="auto", help="auto, legacy, or a protocol version")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for all of it")
    parser.add_argument("--expect-error", action="store_true")
    return parser.parse_args()


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def root_cause(error: BaseException) -> str:
    """The SDK runs in task groups, which wrap the one error that matters."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def call(args: argparse.Namespace, statuses: list[int]) -> str | None:
    """Runs the call; the text of the tool's error if it had one."""
    headers = {"Authorization": f"Bearer {args.token}"}

    async def note(response) -> None:
        if response.request.method == "POST":
            statuses.append(response.status_code)

    async with create_mcp_http_client(headers=headers) as http:
        http.event_hooks["response"].append(note)
        async with Client(streamable_http_client(args.url, http_client=http), mode=args.mode) as client:
            say(protocolVersion=client.protocol_version)
            say(tools=[tool.name for tool in (await client.list_tools()).tools])
            result = await client.call_tool(args.tool, args.json_args)
            say(result=result.model_dump(mode="json", by_alias=True, exclude_none=True))
            if not result.is_error:
                return None
            return "tool error: " + " ".join(getattr(part, "text", "") for part in result.content)


def main() -> int:
    args = arguments()
    # One line on failure is the promise; the SDK's own tracebacks would bury it.
    logging.disable(logging.CRITICAL)
    # The SDK's errors leave out the HTTP status, which is what one wants to know.
    statuses: list[int] = []
    try:
        error = asyncio.run(asyncio.wait_for(call(args, statuses), args.timeout))
    except Exception as caught:  # noqa: BLE001 - whatever it is becomes the one line
        error = root_cause(caught)
        if statuses and statuses[-1] >= 400:
            error += f" (HTTP {statuses[-1]})"
    if args.expect_error and error is not None:
        say(error=error)
        return 0
    if args.expect_error:
        error = "an error was expected, but the call went well"
    if error is not None:
        print(f"call.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
