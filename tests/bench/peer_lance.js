#!/usr/bin/env node
/* For bench_lance: a Lance table with one column of binary values.
 *
 *     peer_lance.js write FOLDER SIZE COUNT
 *     peer_lance.js read FOLDER SIZE COUNT   takes by takeOffsets
 *
 * Value i begins with i as 32 bits, little-endian. "read" prints a line for each batch
 * size: microseconds per value by the clock, and of the processor in all threads.
 * takeOffsets returns values in the order of the table, so the sum of the numbers is
 * compared. The package is searched in build/lance/node_modules, too. */
'use strict';
const crypto = require('crypto');
const path = require('path');

const places = [__dirname, path.resolve(__dirname, '../../build/lance')];
const load = (name) => require(require.resolve(name, {paths: places}));
const TURNS = [[1, 150], [32, 40], [1000, 8]]; // batch size, batches

async function write(database, size, count) {
    const arrow = load('apache-arrow');
    const type = new arrow.Binary();
    const schema = new arrow.Schema([new arrow.Field('v', type, false)]);
    const step = Math.ceil(100e6 / size);
    let table = null;
    for (let start = 0; start < count; start += step) {
        const values = [];
        for (let i = start; i < Math.min(count, start + step); i++) {
            const value = crypto.randomBytes(size);
            value.writeUInt32LE(i);
            values.push(value);
        }
        const part = new arrow.Table(schema, {v: arrow.vectorFromArray(values, type)});
        if (table)
            await table.add(part);
        else
            table = await database.createTable('values', part, {mode: 'overwrite'});
    }
    await table.optimize();
    if (await table.countRows() !== count)
        throw new Error('the table lacks rows');
}

async function take(table, count, batch) {
    const chosen = new Set();
    while (chosen.size < batch)
        chosen.add(Math.floor(Math.random() * count));
    const offsets = [...chosen];
    const rows = await table.takeOffsets(offsets).select(['v']).toArrow();
    const values = rows.getChild('v');
    let sum = 0;
    for (let i = 0; i < values.length; i++) {
        const value = values.get(i);
        sum += value[0] + value[1] * 256 + value[2] * 65536 + value[3] * 16777216;
    }
    if (values.length !== batch || sum !== offsets.reduce((a, b) => a + b))
        throw new Error('other values than asked for');
}

async function read(database, count) {
    const table = await database.openTable('values');
    for (const [batch, batches] of TURNS) {
        for (let i = 0; i < 3; i++) // compile, open
            await take(table, count, batch);
        const cpu = process.cpuUsage(), start = process.hrtime.bigint();
        for (let i = 0; i < batches; i++)
            await take(table, count, batch);
        const took = Number(process.hrtime.bigint() - start) / 1e3;
        const used = process.cpuUsage(cpu);
        const rows = batch * batches;
        console.log(took / rows, (used.user + used.system) / rows);
    }
}

async function main() {
    const [operation, folder, size, count] = process.argv.slice(2);
    const database = await load('@lancedb/lancedb').connect(folder);
    if (operation === 'write')
        await write(database, Number(size), Number(count));
    else
        await read(database, Number(count));
}

main().catch((error) => {
    console.error(String(error.message || error).split('\n')[0]);
    process.exit(1);
});
