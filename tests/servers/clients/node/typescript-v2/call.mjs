// Calls one tool with the official TypeScript SDK and prints what it saw, one JSON object a line. See
// command.mjs for the arguments and the lines.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { notingFetch, run, say, toolError } from './command.mjs';

async function call({ url, token, tool, args, mode }) {
  const negotiation = ['auto', 'legacy'].includes(mode) ? mode : { pin: mode };
  const client = new Client({ name: 'call', version: '1' }, { versionNegotiation: { mode: negotiation } });
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    fetch: notingFetch,
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
  });
  try {
    await client.connect(transport);
    say({ protocolVersion: client.getNegotiatedProtocolVersion() });
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
