"""The command line that the Python clients share.

    URL TOKEN TOOL JSON_ARGS [--mode auto|legacy|VERSION] [--expect-error]

Lines: {"protocolVersion": ...}, {"tools": [...]}, {"result": {...}}. Exits with 1 and one line on
standard error if anything fails, a tool's own error among it; with --expect-error the other way
round, and the error is the last line, as {"error": ...}.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable


class Call:
    """What to call, and what became of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.url: str = args.url
        self.headers = {"Authorization": f"Bearer {args.token}"}
        self.tool: str = args.tool
        self.arguments: dict = args.json_args
        self.mode: str = args.mode
        self._statuses: list[int] = []

    async def note(self, response) -> None:
        """A hook for responses: the SDK's errors leave out the HTTP status, which is what one wants to know."""
        if response.request.method == "POST":
            self._statuses.append(response.status_code)

    @property
    def last_status(self) -> int:
        return self._statuses[-1] if self._statuses else 0


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def tool_error(result) -> str:
    return "tool error: " + " ".join(getattr(part, "text", "") for part in result.content)


def run(sdk: str, call: Callable[[Call], Awaitable[str | None]]) -> int:
    """Runs `call`, which gives the text of the tool's error if it had one; the exit code."""
    args = _arguments(sdk)
    # One line on failure is the promise; the SDK's own tracebacks would bury it.
    logging.disable(logging.CRITICAL)
    made = Call(args)
    try:
        error = asyncio.run(asyncio.wait_for(call(made), args.timeout))
    except Exception as caught:  # noqa: BLE001 - whatever it is becomes the one line
        error = _root_cause(caught)
        if made.last_status >= 400:
            error += f" (HTTP {made.last_status})"
    if args.expect_error and error is not None:
        say(error=error)
        return 0
    if args.expect_error:
        error = "an error was expected, but the call went well"
    if error is not None:
        print(f"{sys.argv[0].rpartition('/')[2]}: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments(sdk: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Calls one tool with {sdk}")
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("tool")
    parser.add_argument("json_args", type=json.loads)
    parser.add_argument("--mode", default="auto", help="auto, legacy, or a protocol version")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for all of it")
    parser.add_argument("--expect-error", action="store_true")
    return parser.parse_args()


def _root_cause(error: BaseException) -> str:
    """The SDK runs in task groups, which wrap the one error that matters."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
