"""Calls one tool with the first generation of the official Python SDK, which many agents still use.

See command.py for the arguments and the lines. This SDK knows one way to connect, so --mode says
nothing to it.
"""

import sys

from command import Call, run, say, tool_error
from mcp import ClientSession
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


async def call(made: Call) -> str | None:
    async with create_mcp_http_client(headers=made.headers) as http:
        http.event_hooks["response"].append(made.note)
        async with (
            streamable_http_client(made.url, http_client=http) as (read, write, _session_id),
            ClientSession(read, write) as session,
        ):
            say(protocolVersion=(await session.initialize()).protocolVersion)
            say(tools=[tool.name for tool in (await session.list_tools()).tools])
            result = await session.call_tool(made.tool, made.arguments)
            say(result=result.model_dump(mode="json", by_alias=True, exclude_none=True))
            return tool_error(result) if result.isError else None


if __name__ == "__main__":
    sys.exit(run("the first generation of the official Python SDK", call))
