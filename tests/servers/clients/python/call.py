"""Calls one tool with the official Python SDK and prints what it saw, one JSON object a line.

See command.py for the arguments and the lines.
"""

import sys

from command import Call, run, say, tool_error
from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


async def call(made: Call) -> str | None:
    async with create_mcp_http_client(headers=made.headers) as http:
        http.event_hooks["response"].append(made.note)
        async with Client(streamable_http_client(made.url, http_client=http), mode=made.mode) as client:
            say(protocolVersion=client.protocol_version)
            say(tools=[tool.name for tool in (await client.list_tools()).tools])
            result = await client.call_tool(made.tool, made.arguments)
            say(result=result.model_dump(mode="json", by_alias=True, exclude_none=True))
            return tool_error(result) if result.is_error else None


if __name__ == "__main__":
    sys.exit(run("the official Python SDK", call))
