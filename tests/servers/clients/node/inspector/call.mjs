// Calls one tool with the command line of the MCP Inspector, as a pipeline would run it, and prints
// what it saw, one JSON object a line. See command.mjs for the arguments and the lines; the
// Inspector does not tell the protocol's version. Each of its runs is a session of its own.

import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { run, say, toolError } from './command.mjs';

const program = fileURLToPath(new URL('./node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url));

async function call({ url, token, tool, args, mode }) {
  // It keeps a catalog of servers in the user's home, which is none of ours.
  const home = await mkdtemp(join(tmpdir(), 'inspector-'));
  const era = ['auto', 'legacy'].includes(mode) ? mode : 'modern';
  const inspect = (...more) => ask(home, ['--server-url', url, '--transport', 'http', '--header', `Authorization: Bearer ${token}`, '--protocol-era', era, ...more]);
  try {
    const { tools } = await inspect('--method', 'tools/list');
    say({ tools: tools.map(({ name }) => name) });
    const result = await inspect('--method', 'tools/call', '--tool-name', tool, '--tool-args-json', JSON.stringify(args));
    say({ result });
    return toolError(result);
  } finally {
    await rm(home, { recursive: true });
  }
}

/** The result that one run of the Inspector prints. */
function ask(home, options) {
  return new Promise((resolve, reject) => {
    // Without a store of logins it fails on a 401, instead of opening a browser.
    const argv = [program, '--cli', '--format', 'json', '--quiet', '--stored-auth-only', ...options];
    const child = execFile(process.execPath, argv, { env: { ...process.env, HOME: home } }, (failure, out, err) => {
      try {
        const { error, result } = JSON.parse(out || err);
        if (error) reject(new Error(`${error.code}: ${error.message}`));
        else resolve(result);
      } catch {
        reject(failure ?? new Error(`not what was expected: ${out}${err}`));
      }
    });
    child.stdin.end();
  });
}

await run(call);
