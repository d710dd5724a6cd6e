// Calls one tool with the official TypeScript SDK and prints what it saw, one JSON object a line. See
// command.mjs for the arguments and the lines.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { callThrough, carrying, run } from './command.mjs';

await run((options) => {
  const negotiation = ['auto', 'legacy'].includes(options.mode) ? options.mode : { pin: options.mode };
  const client = new Client({ name: 'call', version: '1' }, { versionNegotiation: { mode: negotiation } });
  const transport = new StreamableHTTPClientTransport(new URL(options.url), carrying(options.token));
  return callThrough(client, transport, () => client.getNegotiatedProtocolVersion(), options);
});
