// Calls one tool with the first generation of the official TypeScript SDK, which many agents still
// use. See command.mjs for the arguments and the lines. This SDK knows one way to connect, so --mode
// says nothing to it.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { callThrough, carrying, run } from './command.mjs';

await run((options) => {
  const client = new Client({ name: 'call', version: '1' });
  const transport = new StreamableHTTPClientTransport(new URL(options.url), carrying(options.token));
  return callThrough(client, transport, () => transport.protocolVersion, options);
});
