/** The name and type of a field, as in spec.json. */
export interface Field {
  readonly number: number;
  readonly name: string;
  readonly type: string;
  /** True if the type ends in []: a value is then a list of items. */
  readonly sequence: boolean;
}

export type Elements =
  | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array
  | BigInt64Array | BigUint64Array | Float32Array | Float64Array;

/** Elements in C order. float16 becomes Float32Array; a complex number has two elements. */
export interface Tensor {
  readonly dtype: string;
  readonly shape: number[];
  readonly data: Elements;
}

/**
 * Text, a number (a bigint if a number would not be exact), an array, or the bytes of any other
 * type, such as jpeg. An array without dimensions is a number.
 */
export type Item = string | number | bigint | Tensor | Uint8Array | null;
/** A sequence is a list. */
export type Value = Item | Item[];

/** An open dataset. Every failure is an Error that names the file, the field and the index. */
export interface Dataset {
  readonly name: string;
  /** Number of datapoints. */
  readonly length: number;
  /** The fields, sorted by name. */
  readonly fields: Field[];
  /** Read a datapoint: one field, some, or all. */
  get(index: number | bigint, fields?: string | readonly string[]): Promise<Record<string, Value>>;
  /**
   * Read a field of the datapoints start to stop - 1: a typed array if all values are
   * numbers, otherwise a list.
   */
  column(field: string, start?: number, stop?: number): Promise<Float64Array | BigInt64Array | BigUint64Array | Value[]>;
  /** The numbers of the datapoints with a key, in a field that `bags index` has indexed. */
  find(field: string, key: string | number | bigint, options?: {prefix?: boolean}): Promise<number[]>;
  /** Number of items in a datapoint's field, given by its number. */
  items(index: number, field: number): Promise<number>;
  /** An item's stored bytes, decompressed if they are compressed. */
  blob(index: number, field: number, item?: number): Promise<Uint8Array>;
  close(): void;
}

/**
 * Open a dataset: the address of a directory, zip, tar or Bag on a server with ranges; a
 * File (zip, tar, Bag); the files of a folder; in Node also a path or file: URL. It fails if
 * a shard is missing or damaged.
 */
export function open(from: string | URL | File | Iterable<File> | Map<string, Blob>): Promise<Dataset>;
