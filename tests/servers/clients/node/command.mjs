// The command line that the clients for Node share.
//
//     URL TOKEN TOOL JSON_ARGS [--mode auto|legacy|VERSION] [--expect-error]
//
// Lines: {"protocolVersion": ...}, {"tools": [...]}, {"result": {...}}. Exits with 1 and one line on
// standard error if anything fails, a tool's own error among it; with --expect-error the other way
// round, and the error is the last line, as {"error": ...}.

import { parseArgs } from 'node:util';

export const say = (line) => console.log(JSON.stringify(line));

/** The text of a tool's error; undefined if the tool had none. */
export function toolError(result) {
  return result.isError ? `tool error: ${result.content.map(({ text = '' }) => text).join(' ')}` : undefined;
}

// The status of the last POST: the SDKs' errors mostly leave it out.
let status = 0;

async function notingFetch(input, init) {
  const response = await fetch(input, init);
  if (init?.method === 'POST') status = response.status;
  return response;
}

/** Options of an SDK's transport. */
export const carrying = (token) => ({ fetch: notingFetch, requestInit: { headers: { Authorization: `Bearer ${token}` } } });

/** Lists and calls through an SDK's client; `version` gives the protocol's version once it is connected. */
export async function callThrough(client, transport, version, { tool, args }) {
  try {
    await client.connect(transport);
    say({ protocolVersion: version() });
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

/** Runs `call`, which gives the text of the tool's error if it had one, and exits. */
export async function run(call) {
  let options;
  try {
    options = readArguments();
  } catch (caught) {
    fail(caught.message);
  }
  const error = await outcome(call, options);
  if (options.expectError) {
    if (error === undefined) fail('an error was expected, but the call went well');
    say({ error });
  } else if (error !== undefined) {
    fail(error);
  }
  process.exit(0);
}

function readArguments() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      mode: { type: 'string', default: 'auto' },
      timeout: { type: 'string', default: '60' },
      'expect-error': { type: 'boolean', default: false },
    },
  });
  if (positionals.length !== 4) throw new Error('usage: call.mjs URL TOKEN TOOL JSON_ARGS [--mode MODE] [--expect-error]');
  const [url, token, tool, json] = positionals;
  return { url, token, tool, args: JSON.parse(json), mode: values.mode, timeout: Number(values.timeout), expectError: values['expect-error'] };
}

async function outcome(call, options) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('timed out')), options.timeout * 1000);
  });
  try {
    return await Promise.race([call(options), late]);
  } catch (caught) {
    return describe(caught);
  } finally {
    clearTimeout(timer);
  }
}

/** One line with the error and the innermost cause, which for a socket is the only telling one. */
function describe(error) {
  let cause = error;
  while (cause.cause ?? cause.errors?.[0] ?? cause.data?.cause) cause = cause.cause ?? cause.errors?.[0] ?? cause.data.cause;
  const reason = cause === error ? '' : ` (${cause.message || cause.code})`;
  const http = status >= 400 ? ` (HTTP ${status})` : '';
  return `${error.name}: ${error.message}${reason}${http}`.replaceAll(/\s+/g, ' ');
}

function fail(error) {
  console.error(`call.mjs: ${error}`);
  process.exit(1);
}
