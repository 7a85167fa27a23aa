// Package bags reads and writes datasets in the Bag and Bags formats, using bags.h.
//
// A Reader does not change once it is open, so goroutines may share it. Get returns copies.
// View passes a blob to a function without copying it. A Writer may only be used by one
// goroutine at a time.
package bags

/*
#cgo CFLAGS: -I${SRCDIR} -I${SRCDIR}/../../.. -std=gnu11 -O2
#cgo LDFLAGS: -lm -lpthread
#include "bags.h"
#include <stdlib.h>

// Scratch memory for datasets and Bags.
typedef struct glue_row {
    bags_row row;
    bags_buffer buffer;
} glue_row;
*/
import "C"

import (
	"fmt"
	"math"
	"sync"
	"unsafe"
)

// Version is the version of the compiled bags.h.
func Version() string { return C.GoString(C.bags_version()) }

// Code tells a caller how to react to an error: errors.Is(err, bags.Missing).
type Code int

// The codes of bags.h.
const (
	Argument   Code = C.BAGS_ERROR_ARGUMENT
	State      Code = C.BAGS_ERROR_STATE
	Range      Code = C.BAGS_ERROR_RANGE
	NoField    Code = C.BAGS_ERROR_FIELD
	Type       Code = C.BAGS_ERROR_TYPE
	BadValue   Code = C.BAGS_ERROR_VALUE
	Missing    Code = C.BAGS_ERROR_MISSING
	Exists     Code = C.BAGS_ERROR_EXISTS
	Locked     Code = C.BAGS_ERROR_LOCKED
	Unfinished Code = C.BAGS_ERROR_UNFINISHED
	Gap        Code = C.BAGS_ERROR_GAP
	Corrupt    Code = C.BAGS_ERROR_CORRUPT
	Limit      Code = C.BAGS_ERROR_LIMIT
	IO         Code = C.BAGS_ERROR_IO
	Memory     Code = C.BAGS_ERROR_MEMORY
	Changed    Code = C.BAGS_ERROR_CHANGED
)

func (code Code) Error() string { return C.GoString(C.bags_code_name(C.bags_code(code))) }

// Error has a message that names the file, the field and the index.
type Error struct {
	Code    Code
	Message string
}

func (err *Error) Error() string { return err.Message }

// Is makes errors.Is compare the code.
func (err *Error) Is(target error) bool { return target == error(err.Code) }

func failure(code C.bags_code, err *C.bags_error) error {
	if code == C.BAGS_OK {
		return nil
	}
	return &Error{Code(code), C.GoString(&err.message[0])}
}

func fail(code Code, format string, values ...any) error {
	return &Error{code, fmt.Sprintf(format, values...)}
}

// Field is the name and type of a field, as in spec.json.
type Field struct{ Name, Type string }

// Array has elements in C order and native byte order. An array without a shape is one
// element.
type Array struct {
	Dtype string // as named by NumPy: "float32"
	Shape []uint64
	Data  []byte
}

// Blob is an encoded value. A writer stores it unchanged.
type Blob []byte

// Sequence contains the items of a field whose type ends in [].
type Sequence []any

// Datapoint maps each field to its value: []byte, string, uint64, int64, Array, or a Sequence
// of these. A writer also accepts int, float64, bool and Blob.
type Datapoint map[string]any

func view(data unsafe.Pointer, size C.size_t) []byte {
	if size == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(data), int(size))
}

func copyOf(data unsafe.Pointer, size C.size_t) []byte {
	return append([]byte{}, view(data, size)...)
}

// ---- scratch ----

// rows are scratch memory: each running call has one, and later calls reuse it.
type rows struct {
	lock sync.Mutex
	free []*C.glue_row
}

func (of *rows) take() *C.glue_row {
	of.lock.Lock()
	defer of.lock.Unlock()
	if last := len(of.free) - 1; last >= 0 {
		row := of.free[last]
		of.free = of.free[:last]
		return row
	}
	return (*C.glue_row)(C.calloc(1, C.sizeof_glue_row))
}

func (of *rows) give(row *C.glue_row) {
	of.lock.Lock()
	defer of.lock.Unlock()
	of.free = append(of.free, row)
}

func (of *rows) close() {
	for _, row := range of.free {
		C.bags_row_free(&row.row)
		C.bags_buffer_free(&row.buffer)
		C.free(unsafe.Pointer(row))
	}
	of.free = nil
}

// ---- reading ----

// ReaderOptions mirrors bags_reader_options in bags.h.
type ReaderOptions struct {
	ShardStart, ShardStop uint64
	AllowGaps             bool
	SkipUnfinished        bool // skip shards that no writer has finished
	ReadUnfinished        bool // read the flushed datapoints of these shards
	VerifyChecksums       bool
	NoMmap                bool // truncating a file then causes an error, not SIGBUS
	AllowEmptyFile        bool // accept a file of 0 bytes as an empty Bag
}

// Reader is an open dataset.
type Reader struct {
	lock   sync.RWMutex
	raw    *C.bags_reader
	fields []Field
	number map[string]int
	rows   rows
}

// Open opens a dataset. The options may be nil. Call Close when done.
func Open(path string, options *ReaderOptions) (*Reader, error) {
	var raw C.bags_reader_options
	if options != nil {
		if options.SkipUnfinished && options.ReadUnfinished {
			return nil, fail(Argument, "%s: SkipUnfinished and ReadUnfinished are mutually exclusive", path)
		}
		raw.shard_start = C.uint64_t(options.ShardStart)
		raw.shard_stop = C.uint64_t(options.ShardStop)
		raw.allow_gaps = C.bool(options.AllowGaps)
		raw.verify_checksums = C.bool(options.VerifyChecksums)
		raw.no_mmap = C.bool(options.NoMmap)
		if options.SkipUnfinished {
			raw.unfinished = C.BAGS_UNFINISHED_SKIP
		}
		if options.ReadUnfinished {
			raw.unfinished = C.BAGS_UNFINISHED_READ
		}
	}
	name, err := text(path)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(name))
	var failed C.bags_error
	reader := &Reader{number: map[string]int{}}
	if reader.raw = C.bags_reader_open(name, &raw, &failed); reader.raw == nil {
		return nil, failure(failed.code, &failed)
	}
	var count C.size_t
	fields := C.bags_reader_fields(reader.raw, &count)
	for i, field := range unsafe.Slice(fields, int(count)) {
		reader.fields = append(reader.fields, Field{C.GoString(field.name), C.GoString(field._type)})
		reader.number[reader.fields[i].Name] = i
	}
	return reader, nil
}

// Close waits for running calls, then frees the reader. Later calls return an error.
func (reader *Reader) Close() {
	reader.lock.Lock()
	defer reader.lock.Unlock()
	reader.rows.close()
	C.bags_reader_close(reader.raw)
	reader.raw = nil
}

// Len returns the number of datapoints in all shards.
func (reader *Reader) Len() uint64 {
	reader.lock.RLock()
	defer reader.lock.RUnlock()
	return uint64(C.bags_reader_length(reader.raw))
}

// Fields returns the fields, sorted by name.
func (reader *Reader) Fields() []Field { return append([]Field{}, reader.fields...) }

// with calls a function with scratch memory, and keeps the reader open meanwhile.
func (reader *Reader) with(run func(row *C.glue_row) error) error {
	reader.lock.RLock()
	defer reader.lock.RUnlock()
	if reader.raw == nil {
		return fail(State, "the reader is closed")
	}
	row := reader.rows.take()
	defer reader.rows.give(row)
	return run(row)
}

func (reader *Reader) numberOf(field string) (int, error) {
	number, found := reader.number[field]
	if !found {
		return 0, fail(NoField, "no field %q", field)
	}
	return number, nil
}

// Get reads the named fields of a datapoint, or all fields if no names are given.
func (reader *Reader) Get(index uint64, fields ...string) (Datapoint, error) {
	if len(fields) == 0 {
		for _, field := range reader.fields {
			fields = append(fields, field.Name)
		}
	}
	selects := make([]C.bags_select, len(fields)+1)
	for i, field := range fields {
		number, err := reader.numberOf(field)
		if err != nil {
			return nil, err
		}
		selects[i].field = C.size_t(number)
	}
	out := Datapoint{}
	err := reader.with(func(row *C.glue_row) error {
		var failed C.bags_error
		if code := C.bags_reader_get(reader.raw, C.uint64_t(index), &selects[0], C.size_t(len(fields)), &row.row, &failed); code != C.BAGS_OK {
			return failure(code, &failed)
		}
		for slot, field := range fields {
			items := Sequence{}
			for item := C.size_t(0); item < C.bags_row_length(&row.row, C.size_t(slot)); item++ {
				var value C.bags_value
				if code := C.bags_row_value(&row.row, C.size_t(slot), item, nil, &value, &failed); code != C.BAGS_OK {
					return failure(code, &failed)
				}
				items = append(items, valueOf(&value))
			}
			kind := reader.fields[reader.number[field]].Type
			if kind[len(kind)-1] == ']' {
				out[field] = items
			} else {
				out[field] = items[0]
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func valueOf(value *C.bags_value) any {
	switch value.kind {
	case C.BAGS_KIND_UTF8:
		return string(view(value.data, value.size))
	case C.BAGS_KIND_UINT:
		return uint64(value.uint)
	case C.BAGS_KIND_INT:
		return int64(value.sint)
	case C.BAGS_KIND_ARRAY:
		array := Array{C.GoString(C.bags_dtype_name(value.dtype)), []uint64{}, copyOf(value.data, value.size)}
		for _, size := range unsafe.Slice(value.shape, int(value.dims)) {
			array.Shape = append(array.Shape, uint64(size))
		}
		return array
	}
	return copyOf(value.data, value.size)
}

// View calls a function with a stored blob: item 0 of a plain field, or any item of a
// sequence. The blob is not copied if the file is mapped. The function must not change the
// bytes, keep them after it returns, or close the reader.
func (reader *Reader) View(index uint64, field string, item uint64, use func(blob []byte) error) error {
	number, err := reader.numberOf(field)
	if err != nil {
		return err
	}
	return reader.with(func(row *C.glue_row) error {
		var failed C.bags_error
		var blob C.bags_view
		if code := C.bags_reader_get_blob(reader.raw, C.uint64_t(index), C.size_t(number), C.uint64_t(item), &row.row, &blob, &failed); code != C.BAGS_OK {
			return failure(code, &failed)
		}
		return use(view(unsafe.Pointer(blob.data), blob.size))
	})
}

// Items returns the number of items in a datapoint's field; 1 for a plain field.
func (reader *Reader) Items(index uint64, field string) (uint64, error) {
	number, err := reader.numberOf(field)
	if err != nil {
		return 0, err
	}
	var count C.uint64_t
	err = reader.with(func(row *C.glue_row) error {
		var failed C.bags_error
		return failure(C.bags_reader_items(reader.raw, C.uint64_t(index), C.size_t(number), &row.row, &count, &failed), &failed)
	})
	return uint64(count), err
}

// Rows iterates over datapoints: for rows.Next() { rows.Datapoint() }, then rows.Err().
type Rows struct {
	reader    *Reader
	fields    []string
	next      uint64
	datapoint Datapoint
	err       error
}

// Rows iterates over all datapoints in order, reading the named fields, or all fields.
func (reader *Reader) Rows(fields ...string) *Rows { return &Rows{reader: reader, fields: fields} }

// Next reads the next datapoint. It returns false after the last one and after an error.
func (rows *Rows) Next() bool {
	if rows.err != nil || rows.next >= rows.reader.Len() {
		return false
	}
	rows.datapoint, rows.err = rows.reader.Get(rows.next, rows.fields...)
	rows.next++
	return rows.err == nil
}

// Index and Datapoint return what Next has read.
func (rows *Rows) Index() uint64        { return rows.next - 1 }
func (rows *Rows) Datapoint() Datapoint { return rows.datapoint }

// Err returns the error that ended the iteration.
func (rows *Rows) Err() error { return rows.err }

// ---- one file ----

// Bag is an open file of blobs.
type Bag struct {
	lock sync.RWMutex
	raw  *C.bag_reader
	rows rows
}

// OpenBag opens a file. Only the options VerifyChecksums, NoMmap and AllowEmptyFile apply.
// The options may be nil.
func OpenBag(path string, options *ReaderOptions) (*Bag, error) {
	var raw C.bag_reader_options
	if options != nil {
		raw.verify_checksums = C.bool(options.VerifyChecksums)
		raw.no_mmap = C.bool(options.NoMmap)
		raw.allow_empty_file = C.bool(options.AllowEmptyFile)
	}
	name, err := text(path)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(name))
	var failed C.bags_error
	bag := &Bag{raw: C.bag_reader_open(name, &raw, &failed)}
	if bag.raw == nil {
		return nil, failure(failed.code, &failed)
	}
	return bag, nil
}

// Close waits for running calls, then frees the Bag. Later calls return an error.
func (bag *Bag) Close() {
	bag.lock.Lock()
	defer bag.lock.Unlock()
	bag.rows.close()
	C.bag_reader_close(bag.raw)
	bag.raw = nil
}

// Len returns the number of blobs.
func (bag *Bag) Len() uint64 {
	bag.lock.RLock()
	defer bag.lock.RUnlock()
	return uint64(C.bag_reader_length(bag.raw))
}

// View calls a function with a blob, like Reader.View.
func (bag *Bag) View(index uint64, use func(blob []byte) error) error {
	bag.lock.RLock()
	defer bag.lock.RUnlock()
	if bag.raw == nil {
		return fail(State, "the Bag is closed")
	}
	row := bag.rows.take()
	defer bag.rows.give(row)
	var failed C.bags_error
	var blob C.bags_view
	if code := C.bag_reader_get(bag.raw, C.uint64_t(index), &row.buffer, &blob, &failed); code != C.BAGS_OK {
		return failure(code, &failed)
	}
	return use(view(unsafe.Pointer(blob.data), blob.size))
}

// ---- writing ----

// WriterOptions mirrors bags_writer_options in bags.h.
type WriterOptions struct {
	ShardSize, ShardLength uint64 // bytes, or datapoints, per shard; 0: no limit
	ShardStart, ShardStop  uint64 // the number of this worker, and of all workers
	FlushSeconds           float64
	Checksum, AnyType      bool
}

// Writer writes a dataset. Close completes it. If the program ends before that, readers refuse
// the dataset, and `bags recover` completes it.
type Writer struct {
	raw *C.bags_writer
}

// memory is the memory that C reads during one call.
type memory []unsafe.Pointer

func (of *memory) allocate(count, size uintptr) unsafe.Pointer {
	*of = append(*of, C.calloc(C.size_t(count+1), C.size_t(size)))
	return (*of)[len(*of)-1]
}

func (of *memory) free() {
	for _, data := range *of {
		C.free(data)
	}
}

func text(of string) (*C.char, error) {
	for i := range of {
		if of[i] == 0 {
			return nil, fail(Argument, "a path or name contains NUL")
		}
	}
	return C.CString(of), nil
}

func (of *memory) text(from string) (*C.char, error) {
	out, err := text(from)
	if err == nil {
		*of = append(*of, unsafe.Pointer(out))
	}
	return out, err
}

func (of *memory) bytes(from []byte) (unsafe.Pointer, C.size_t) {
	data := of.allocate(uintptr(len(from)), 1)
	copy(unsafe.Slice((*byte)(data), len(from)+1), from)
	return data, C.size_t(len(from))
}

// Create creates a dataset. The options may be nil.
func Create(path string, fields []Field, options *WriterOptions) (*Writer, error) {
	var raw C.bags_writer_options
	if options != nil {
		raw.shard_size = C.uint64_t(options.ShardSize)
		raw.shard_length = C.uint64_t(options.ShardLength)
		raw.shard_start = C.uint64_t(options.ShardStart)
		raw.shard_stop = C.uint64_t(options.ShardStop)
		raw.flush_seconds = C.double(options.FlushSeconds)
		raw.checksum = C.bool(options.Checksum)
		raw.any_type = C.bool(options.AnyType)
	}
	var used memory
	defer used.free()
	name, err := used.text(path)
	if err != nil {
		return nil, err
	}
	made := (*C.bags_field)(used.allocate(uintptr(len(fields)), C.sizeof_bags_field))
	for i, field := range fields {
		to := &unsafe.Slice(made, len(fields))[i]
		if to.name, err = used.text(field.Name); err != nil {
			return nil, err
		}
		if to._type, err = used.text(field.Type); err != nil {
			return nil, err
		}
	}
	var failed C.bags_error
	writer := &Writer{C.bags_writer_open(name, made, C.size_t(len(fields)), &raw, &failed)}
	if writer.raw == nil {
		return nil, failure(failed.code, &failed)
	}
	return writer, nil
}

func (of *memory) value(field string, from any) (out C.bags_value, err error) {
	switch value := from.(type) {
	case Blob:
		data, size := of.bytes(value)
		out = C.bags_blob(data, size)
	case []byte:
		data, size := of.bytes(value)
		out = C.bags_bytes(data, size)
	case string:
		data, size := of.bytes([]byte(value))
		out = C.bags_utf8_sized((*C.char)(data), size)
	case int:
		out = C.bags_int(C.int64_t(value))
	case int64:
		out = C.bags_int(C.int64_t(value))
	case uint64:
		out = C.bags_uint(C.uint64_t(value))
	case float64:
		out = C.bags_real(C.double(value))
	case bool:
		out = C.bags_bool(C.bool(value))
	case Array:
		name, size := of.bytes([]byte(value.Dtype))
		dtype := C.bags_dtype_parse((*C.char)(name), size, nil)
		if dtype == C.BAGS_DTYPE_NONE {
			return out, fail(Type, "field %q: not a dtype: %q", field, value.Dtype)
		}
		// bags.h reads as many bytes as the shape states.
		shape := (*C.uint64_t)(of.allocate(uintptr(len(value.Shape)), 8))
		bytes := uint64(C.bags_dtype_size(dtype))
		for i, length := range value.Shape {
			unsafe.Slice(shape, len(value.Shape))[i] = C.uint64_t(length)
			if length != 0 && bytes > math.MaxUint64/length {
				return out, fail(BadValue, "field %q: array too large: shape %v", field, value.Shape)
			}
			bytes *= length
		}
		if bytes != uint64(len(value.Data)) {
			return out, fail(BadValue, "field %q: an array of %s with the shape %v has %d bytes", field, value.Dtype, value.Shape, len(value.Data))
		}
		data, _ := of.bytes(value.Data)
		out = C.bags_array(dtype, C.size_t(len(value.Shape)), shape, data)
	default:
		return out, fail(BadValue, "field %q: a value of type %T", field, from)
	}
	return out, nil
}

// Append appends a datapoint with a value for every field. It is written entirely or not at all.
func (writer *Writer) Append(datapoint Datapoint) error {
	var used memory
	defer used.free()
	entries := (*C.bags_entry)(used.allocate(uintptr(len(datapoint)), C.sizeof_bags_entry))
	next := 0
	for field, value := range datapoint {
		items, isSequence := value.(Sequence)
		if !isSequence {
			items = Sequence{value}
		}
		entry := &unsafe.Slice(entries, len(datapoint))[next]
		var err error
		if entry.field, err = used.text(field); err != nil {
			return err
		}
		values := (*C.bags_value)(used.allocate(uintptr(len(items)), C.sizeof_bags_value))
		for i, item := range items {
			if unsafe.Slice(values, len(items))[i], err = used.value(field, item); err != nil {
				return err
			}
		}
		entry.values = values
		entry.count = C.size_t(len(items))
		next++
	}
	var failed C.bags_error
	return failure(C.bags_writer_append(writer.raw, entries, C.size_t(len(datapoint)), &failed), &failed)
}

// Len returns the number of appended datapoints.
func (writer *Writer) Len() uint64 { return uint64(C.bags_writer_length(writer.raw)) }

// Flush passes every complete datapoint to the system, so that it survives this process.
func (writer *Writer) Flush() error {
	var failed C.bags_error
	return failure(C.bags_writer_flush(writer.raw, &failed), &failed)
}

// Sync flushes, and waits for stable storage.
func (writer *Writer) Sync() error {
	var failed C.bags_error
	return failure(C.bags_writer_sync(writer.raw, &failed), &failed)
}

// Clear discards refused datapoints, so that Close can succeed without them.
func (writer *Writer) Clear() { C.bags_writer_clear(writer.raw) }

// Close completes the dataset, and returns the first failure of this writer. Later calls
// return an error, except Close itself.
func (writer *Writer) Close() error {
	var failed C.bags_error
	raw := writer.raw
	writer.raw = nil
	return failure(C.bags_writer_close(raw, &failed), &failed)
}

// Abort removes the unfinished shard.
func (writer *Writer) Abort() {
	C.bags_writer_abort(writer.raw)
	writer.raw = nil
}
