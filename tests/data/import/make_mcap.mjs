// Made mcap/ with @mcap/core 2.2: node tests/data/import/make_mcap.mjs, where npm has
// installed it. The tools zstd and lz4 compress the chunks. See make_arrays.py.
import {McapWriter} from '@mcap/core';
import {execFileSync} from 'child_process';
import {createHash} from 'crypto';
import fs from 'fs';
import path from 'path';
import url from 'url';

const here = path.dirname(url.fileURLToPath(import.meta.url));
fs.mkdirSync(`${here}/mcap`, {recursive: true});

class File {
  constructor(name) { this.handle = fs.openSync(name, 'w'); this.size = 0n; }
  async write(bytes) { fs.writeSync(this.handle, bytes); this.size += BigInt(bytes.byteLength); }
  position() { return this.size; }
}

const compress = tool => data => ({
  compression: tool,
  compressedData: execFileSync(tool, ['-c', '-q', '-'], {input: data}),
});
const kinds = {
  plain: {useChunks: false},
  chunks: {useChunks: true, chunkSize: 300},
  zstd: {useChunks: true, chunkSize: 800, compressChunk: compress('zstd')},
  lz4: {useChunks: true, chunkSize: 800, compressChunk: compress('lz4')},
  'no-index': {useChunks: true, chunkSize: 800, useStatistics: false, useSummaryOffsets: false,
    useMessageIndex: false, useChunkIndex: false, repeatChannels: false, repeatSchemas: false,
    useMetadataIndex: false, useAttachmentIndex: false},
};
const topics = ['/camera/front', '/imu', 'status'];
const number = (value, signed) => {
  const bytes = Buffer.alloc(8);
  signed ? bytes.writeBigInt64LE(value) : bytes.writeBigUInt64LE(value);
  return bytes;
};

for (const [kind, options] of Object.entries(kinds)) {
  const writer = new McapWriter({writable: new File(`${here}/mcap/${kind}.mcap`), ...options});
  await writer.start({profile: '', library: 'test'});
  const schemaId = await writer.registerSchema(
    {name: 's', encoding: 'jsonschema', data: new TextEncoder().encode('{}')});
  const channels = [];
  for (const topic of topics)
    channels.push(await writer.registerChannel(
      {schemaId, topic, messageEncoding: 'json', metadata: new Map()}));
  await writer.addAttachment({name: 'a', logTime: 0n, createTime: 0n, mediaType: 'x',
    data: new Uint8Array(50)});
  const length = 20;
  const names = ['log_time', 'publish_time', 'sequence', '_camera_front', '_imu', 'status'];
  const digests = names.map(() => createHash('sha256'));
  for (let i = 0; i < length; i++) {
    const topic = i % 7 == 0 ? 0 : i % 5 == 0 ? 2 : 1;
    const data = new Uint8Array(i * 3 % 47).map((_, k) => (i * 31 + k * 7) & 255);
    const logTime = 1700000000000000000n + BigInt(i) * 1000n;
    await writer.addMessage(
      {channelId: channels[topic], sequence: i, logTime, publishTime: logTime - 5n, data});
    [logTime, logTime - 5n, BigInt(i)].forEach((value, k) => {
      digests[k].update(number(8n));
      digests[k].update(number(value, k < 2));
    });
    topics.forEach((_, k) => {
      digests[3 + k].update(number(k == topic ? 1n : 0n));
      if (k == topic) {
        digests[3 + k].update(number(BigInt(data.length)));
        digests[3 + k].update(data);
      }
    });
  }
  await writer.addMetadata({name: 'm', metadata: new Map([['k', 'v']])});
  await writer.end();
  const types = ['i64', 'i64', 'u64', 'bytes[]', 'bytes[]', 'bytes[]'];
  fs.writeFileSync(`${here}/mcap.expected`, `${length}\n` + names.map(
    (name, i) => `${types[i]} ${digests[i].digest('hex')} ${name}\n`).join(''));
}
