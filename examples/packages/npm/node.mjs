// node.mjs - the reader in Node. It also accepts paths and file: URLs.
import fs from 'node:fs';
import {fileURLToPath} from 'node:url';
import {files_of} from './files.mjs';
import {start, open as open_dataset} from './reader.mjs';

let started;

export async function open(from) {
  await (started ??= start(() => fs.readFileSync(new URL('./bags.wasm', import.meta.url))));
  if (typeof from !== 'string' && !(from instanceof URL)) return open_dataset(from);
  if (/^https?:/.test(String(from))) return open_dataset(from);
  return open_dataset(files_of(/^file:/.test(String(from)) ? fileURLToPath(from) : String(from)));
}
