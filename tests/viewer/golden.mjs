// golden.mjs - the viewer's WebAssembly reader under node: the golden data have the
// digests that an independent reader recorded, and what is damaged is refused.
//
//     node tests/viewer/golden.mjs build/viewer.wasm
import fs from 'node:fs';
import path from 'node:path';
import crypto from 'node:crypto';
import {start, Dataset, Local} from '../../examples/viewer/reader.mjs';
import {files_of} from './files.mjs';
import {golden, manifests, read, compare} from './manifests.mjs';

// The files of a dataset, or a Bag and what is next to it.
function dataset_at(where) {
  const files = files_of(where), index = where.replace(/\.bag$/, '.idx');
  if (index !== where && fs.existsSync(index)) for (const [key, file] of files_of(index)) files.set(key, file);
  return new Dataset(new Local(path.basename(where), files));
}

await start(() => fs.readFileSync(process.argv[2]));
let passed = 0, failed = 0;
for (const manifest of manifests()) {
  const why = await compare(manifest, () => read(dataset_at(path.join(golden, manifest.data)),
    data => crypto.createHash('sha256').update(data).digest('hex')));
  if (why) console.log(`FAILED ${manifest.name}: ${why}`);
  if (why) failed++; else passed++;
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
