// files.mjs - local files as File objects, like those of a browser.
import fs from 'node:fs';
import path from 'node:path';

function file_of(name) {
  return {size: fs.statSync(name).size, slice: (start, stop) => ({async arrayBuffer() {
    const data = Buffer.alloc(stop - start), file = fs.openSync(name);
    try {
      const count = fs.readSync(file, data, 0, stop - start, start);
      return new Uint8Array(data.subarray(0, count)).buffer;
    } finally { fs.closeSync(file); }
  }})};
}

// The files in a directory, or a single file and the other files of a Bag. The paths begin
// with the name of the directory or file.
export function files_of(where) {
  const files = new Map(), root = path.dirname(path.resolve(where));
  const add = name => {
    if (fs.statSync(name).isDirectory()) for (const entry of fs.readdirSync(name)) add(path.join(name, entry));
    else files.set(path.relative(root, name).split(path.sep).join('/'), file_of(name));
  };
  add(path.resolve(where));
  for (const ending of /\.bag$/.test(where) ? ['.idx', '.crc', '.dict'] : []) {
    const beside = path.resolve(where.replace(/\.bag$/, ending));
    if (fs.existsSync(beside)) add(beside);
  }
  return files;
}
