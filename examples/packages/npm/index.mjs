// index.mjs - the reader in browsers and workers: bags.wasm is next to this file.
import {start, open as open_dataset} from './reader.mjs';

let started;

async function load() {
  const answer = await fetch(new URL('./bags.wasm', import.meta.url));
  if (!answer.ok) throw Error(`bags.wasm: the server answers ${answer.status}`);
  return answer.arrayBuffer();
}

// A failure is not cached: the next call tries to load it again.
export async function open(from) {
  started ??= start(load);
  try { await started; } catch (error) {
    started = undefined;
    throw error;
  }
  return open_dataset(from);
}
