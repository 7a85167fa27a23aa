// values.mjs - what the page shows of numbers, and what its filter searches, under node
// with a stub of the DOM.
//
//     node tests/viewer/values.mjs build/viewer.wasm
import fs from 'node:fs';

const make = tag => ({tag, children: [], append(...more) { this.children.push(...more); },
  get textContent() { return this.children.map(child => typeof child === 'string' ? child : child.textContent).join(''); },
  getContext: () => ({beginPath() {}, lineTo() {}, stroke() {}, putImageData() {}, createImageData: (w, h) => ({data: new Uint8ClampedArray(4 * w * h)})})});
globalThis.document = {createElement: make, documentElement: {}};
globalThis.getComputedStyle = () => ({getPropertyValue: () => ''});
const {start} = await import('../../examples/viewer/reader.mjs');
const {show, msgpack, brief, typed, SEARCH_MOST} = await import('../../examples/viewer/values.mjs');
await start(() => fs.readFileSync(process.argv[2]));

let passed = 0, failed = 0;
const assert = (value, what) => { if (!value) throw Error(what); };
const equal = (a, b) => assert(Object.is(a, b), `${a} is not ${b}`);
function test(name, run) {
  try {
    run();
    console.log(`ok      ${name}`);
    passed++;
  } catch (error) {
    console.log(`FAILED  ${name}: ${error.stack}`);
    failed++;
  }
}
const field = type => ({inside: type, base: /^\w+/.exec(type)[0]});
const shown = (type, elements, full = false) => show(field(type), new Uint8Array(elements.buffer), full);
let seed = 1n;
const random = () => { seed = BigInt.asUintN(64, seed * 6364136223846793005n + 1442695040888963407n); return seed ^ seed >> 29n; };
// No text of one digit less is the same number.
const is_shortest = (text, reads_back) => {
  const digits = text.replace(/e.*/, '').replace(/[-.]/g, '').replace(/^0+/, '').replace(/0+$/, '').length;
  return digits < 2 || !reads_back(Number(Number(text).toPrecision(digits - 1)));
};

test('a float64 is the shortest text that reads back', () => {
  const some = [1700000123.5, 16777217.25, 123456789.125, 0.1, 1 / 3, -0, 1e21, 5e-324, Number.MAX_VALUE, NaN, Infinity, -Infinity];
  for (let i = 0; i < 20000; i++) some.push(new Float64Array(new BigUint64Array([random()]).buffer)[0]);
  for (const number of some) {
    const {text, node, number: counted} = shown('array(float64)', new Float64Array([number]));
    equal(Number(text), number);
    equal(node.textContent, text);
    equal(counted, number);
    if (Number.isFinite(number)) assert(is_shortest(text, other => other === number), text);
  }
  equal(shown('array(float64,2)', new Float64Array([52.51627312, 13.37770443])).text, '52.51627312, 13.37770443');
});
test('a float32 is the shortest text that reads back', () => {
  for (let i = 0; i < 20000; i++) {
    const all = new Float32Array(new Uint32Array([Number(random() & 0xFFFFFFFFn)]).buffer), {text, number} = shown('array(float32)', all);
    equal(Math.fround(Number(text)), all[0]);
    equal(number, all[0]);
    if (Number.isFinite(all[0])) assert(is_shortest(text, other => Math.fround(other) === all[0]), text);
  }
  for (const [number, text] of [[0.1, '0.1'], [16777216, '16777216'], [52.51627312, '52.516273'], [1e-45, '1e-45'], [-0, '-0']])
    equal(shown('array(float32)', new Float32Array([number])).text, text);
});
test('every float16 is the shortest text that reads back', () => {
  const value = bits => shown('array(float16)', new Uint16Array([bits])).number;
  for (let bits = 0; bits < 0x7C00; bits++) {
    const number = value(bits), next = bits === 0x7BFF ? 65536 : value(bits + 1), {text} = shown('array(float16)', new Uint16Array([bits]));
    const reads_back = other => {
      const above = (number + next) / 2, below = bits ? (number + value(bits - 1)) / 2 : -above;
      return bits % 2 ? other > below && other < above : other >= below && other <= above;
    };
    assert(reads_back(Number(text)) && is_shortest(text, reads_back), `${bits}: ${number} is ${text}`);
    if (bits) equal(shown('array(float16)', new Uint16Array([bits | 0x8000])).text, `-${text}`);
  }
  for (const [bits, text] of [[0x7C00, 'Infinity'], [0xFC00, '-Infinity'], [0x7E00, 'NaN'], [0x8000, '-0'], [0x2E66, '0.1'], [0x7BFF, '65500']])
    equal(shown('array(float16)', new Uint16Array([bits])).text, text);
});
test('integers, bools and complex numbers are exact', () => {
  for (const [type, elements, text] of [['u64', new BigUint64Array([2n ** 64n - 1n]), '18446744073709551615'], ['i64', new BigInt64Array([-(2n ** 63n)]), '-9223372036854775808'],
    ['array(int64,2)', new BigInt64Array([2n ** 53n + 1n, -1n]), '9007199254740993, -1'], ['array(uint32)', new Uint32Array([2 ** 32 - 1]), '4294967295'],
    ['array(bool,2)', new Uint8Array([1, 0]), 'true, false'], ['array(complex64)', new Float32Array([0.1, -2]), '0.1-2j'],
    ['array(complex128,2)', new Float64Array([1 / 3, 1e9 + 0.5, NaN, -0]), '0.3333333333333333+1000000000.5j, NaN-0j'], ['int(4)', new Uint32Array([7]), '7']])
    equal(shown(type, elements).text, text);
  equal(shown('i64', new BigInt64Array([-(2n ** 63n)])).number, -(2n ** 63n));
});
test('the range of an array is exact, and says what is not finite', () => {
  const text = (type, elements) => shown(type, elements, true).node.textContent;
  assert(text('array(float64,9)', new Float64Array([1700000123.5, ...Array(8).fill(1700000124.25)])).startsWith('float64 9, 1700000123.5 to 1700000124.25'), 'float64');
  assert(text('array(float32,9)', new Float32Array(9).fill(0.1)).startsWith('float32 9, 0.1 to 0.1'), 'float32');
  assert(text('array(int64,9)', new BigInt64Array(9).fill(2n ** 53n + 1n)).startsWith('int64 9, 9007199254740993 to 9007199254740993'), 'int64');
  assert(text('array(float32,9)', new Float32Array([NaN, Infinity, 0, 1, 2, 3, 4, 5, 6])).startsWith('float32 9, 0 to 6, 2 not finite'), 'some');
  assert(text('array(float32,9)', new Float32Array(9).fill(NaN)).startsWith('float32 9, 9 not finite'), 'all');
});
test('a number that is typed is compared as one of its dtype', () => {
  for (const [type, text, expected] of [['array(float64)', '1.7000001235e9', '1700000123.5'], ['array(float32)', '0.10', '0.1'], ['array(float32)', '1700000128', '1700000100'],
    ['array(float16)', '0.0999755859375', '0.1'], ['array(float64)', '.50', '0.5'], ['array(float64)', 'x', 'x'], ['array(float64)', '', ''], ['utf8', '0.10', '0.10'], ['u64', '18446744073709551615', '18446744073709551615']])
    equal(typed(field(type), text), expected);
});
test('the filter has all of a text, or says that it was cut', () => {
  const of = text => show(field('utf8'), new TextEncoder().encode(text), false);
  equal(of('a'.repeat(SEARCH_MOST)).cut, false);
  equal(of('a'.repeat(SEARCH_MOST) + 'needle').cut, true);
  equal(of('\uFEFFa').text, '\uFEFFa');
  const packed = show(field('msgpack'), Uint8Array.from([0x88, ...Array.from({length: 8}, (_, i) => [0xA1, 97 + i, 0x91, 0x91, 0x91, 0x91, i]).flat()]), false);
  equal(packed.text, `{${Array.from({length: 8}, (_, i) => `${String.fromCharCode(97 + i)}: [[[[${i}]]]]`).join(', ')}}`);
  equal(packed.cut, false);
  equal(show(field('msgpack'), Uint8Array.from([0xDA, 8, 0, ...Array(2048).fill(97)]), false).cut, true);
});
test('msgpack is shown as it is', () => {
  for (const [bytes, text] of [[[0xCA, 0x3D, 0xCC, 0xCC, 0xCD], '0.1'], [[0xCB, 0x80, 0, 0, 0, 0, 0, 0, 0], '-0'], [[0xCF, ...Array(8).fill(255)], '18446744073709551615'],
    [[0x82, 0xA1, 97, 1, 0xA1, 97, 2], '{a: 1, a: 2}'], [[0x81, 0xC4, 1, 7, 1], '{1 B: 07: 1}'], [[0xA2, 0xFF, 0xFE], 'not UTF-8, 2 B: ff fe'], [[0xA4, 0xEF, 0xBB, 0xBF, 97], '"\uFEFFa"']])
    equal(brief(msgpack(Uint8Array.from(bytes))), text);
});
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
