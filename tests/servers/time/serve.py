"""Serves the reference server mcp-server-time, which by itself speaks stdio only, over streamable HTTP."""

import os

from mcp_server_time.server import create_server

# Every address: the SDK then checks no Host, which in a cluster is the Service's name.
create_server("UTC").run("streamable-http", host="0.0.0.0", port=int(os.environ["PORT"]))
