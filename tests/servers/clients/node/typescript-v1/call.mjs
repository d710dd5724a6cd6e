// Calls one tool with the first generation of the official TypeScript SDK, which many agents still
// use. See command.mjs for the arguments and the lines. This SDK knows one way to connect, so --mode
// says nothing to it.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { notingFetch, run, say, toolError } from './command.mjs';

async function call({ url, token, tool, args }) {
  const client = new Client({ name: 'call', version: '1' });
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    fetch: notingFetch,
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
  });
  try {
    await client.connect(transport);
    say({ protocolVersion: transport.protocolVersion });
    say({ tools: (await client.listTools()).tools.map(({ name }) => name) });
    const result = await client.callTool({ name: tool, arguments: args });
    say({ result });
    return toolError(result);
  } finally {
    // close() alone would leave the session behind on the server.
    if (transport.sessionId) await transport.terminateSession().catch(() => {});
    await client.close().catch(() => {});
  }
}

await run(call);
