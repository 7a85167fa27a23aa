//! Datasets in the Bag and Bags formats, using bags.h.
//!
//! A [`Reader`] does not change once it is open, so threads may share it, each with its own
//! [`Row`]. A row holds the datapoint that was read last. Values borrow the reader and the
//! row, so that neither can be dropped or reused while a value exists.
//!
//! ```no_run
//! let reader = bags::Reader::open("pets")?;
//! let mut row = bags::Row::new();
//! let pet = reader.get(0, &mut row)?;
//! println!("{:?} {}", pet.value("label")?, pet.text("words", 1)?);
//! # Ok::<(), bags::Error>(())
//! ```
//!
//! Using a view after its row was reused, or after its reader was dropped, does not compile:
//!
//! ```compile_fail,E0499
//! # fn f(reader: &bags::Reader, row: &mut bags::Row) -> bags::Result<()> {
//! let first = reader.view(0, 0, 0, row)?;
//! let second = reader.view(1, 0, 0, row)?;
//! assert_eq!(first, second);
//! # Ok(()) }
//! ```
//!
//! ```compile_fail,E0505
//! # fn f(reader: bags::Reader, mut row: bags::Row) -> bags::Result<()> {
//! let first = reader.view(0, 0, 0, &mut row)?;
//! drop(reader);
//! assert_eq!(first, b"");
//! # Ok(()) }
//! ```
use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::os::raw::{c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};
use std::slice;

// ---- glue.c ----

#[repr(C)]
struct RawError {
    kind: c_int,
    message: [c_char; 1024],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawValue {
    kind: c_int,
    dtype: c_int,
    uint: u64,
    sint: i64,
    real: f64,
    data: *const u8,
    size: usize,
    dims: usize,
    shape: *const u64,
}

#[repr(C)]
struct RawField {
    name: *const c_char,
    kind: *const c_char,
}

#[repr(C)]
struct RawEntry {
    field: *const c_char,
    values: *const RawValue,
    count: usize,
}

#[repr(C)]
struct RawReaderOptions {
    shard_start: u64,
    shard_stop: u64,
    unfinished: c_int,
    allow_gaps: bool,
    verify_checksums: bool,
    no_mmap: bool,
    allow_empty_file: bool,
}

#[repr(C)]
struct RawWriterOptions {
    shard_size: u64,
    shard_length: u64,
    shard_start: u64,
    shard_stop: u64,
    flush_seconds: f64,
    checksum: bool,
    any_type: bool,
}

extern "C" {
    fn glue_version() -> *const c_char;
    fn glue_dtype_name(dtype: c_int) -> *const c_char;
    fn glue_dtype_size(dtype: c_int) -> usize;
    fn glue_dtype_parse(name: *const u8, size: usize) -> c_int;
    fn glue_reader_open(path: *const c_char, options: *const RawReaderOptions, error: *mut RawError) -> *mut c_void;
    fn glue_reader_close(reader: *mut c_void);
    fn glue_reader_length(reader: *const c_void) -> u64;
    fn glue_reader_fields(reader: *const c_void) -> usize;
    fn glue_reader_field(reader: *const c_void, i: usize, name: *mut *const c_char, kind: *mut *const c_char);
    fn glue_row_create() -> *mut c_void;
    fn glue_row_free(row: *mut c_void);
    fn glue_reader_get(reader: *const c_void, index: u64, row: *mut c_void, error: *mut RawError) -> bool;
    fn glue_reader_view(reader: *const c_void, index: u64, field: usize, item: u64, row: *mut c_void,
        data: *mut *const u8, size: *mut usize, error: *mut RawError) -> bool;
    fn glue_reader_items(reader: *const c_void, index: u64, field: usize, row: *mut c_void, count: *mut u64,
        error: *mut RawError) -> bool;
    fn glue_row_length(row: *const c_void, slot: usize) -> usize;
    fn glue_row_bytes(row: *const c_void, slot: usize, item: usize, data: *mut *const u8, size: *mut usize);
    fn glue_row_value(row: *mut c_void, slot: usize, item: usize, out: *mut RawValue, error: *mut RawError) -> bool;
    fn glue_bag_open(path: *const c_char, options: *const RawReaderOptions, error: *mut RawError) -> *mut c_void;
    fn glue_bag_close(bag: *mut c_void);
    fn glue_bag_length(bag: *const c_void) -> u64;
    fn glue_bag_get(bag: *const c_void, index: u64, row: *mut c_void, data: *mut *const u8, size: *mut usize,
        error: *mut RawError) -> bool;
    fn glue_writer_open(path: *const c_char, fields: *const RawField, count: usize,
        options: *const RawWriterOptions, error: *mut RawError) -> *mut c_void;
    fn glue_writer_append(writer: *mut c_void, entries: *const RawEntry, count: usize, error: *mut RawError) -> bool;
    fn glue_writer_flush(writer: *mut c_void, error: *mut RawError) -> bool;
    fn glue_writer_sync(writer: *mut c_void, error: *mut RawError) -> bool;
    fn glue_writer_clear(writer: *mut c_void);
    fn glue_writer_length(writer: *const c_void) -> u64;
    fn glue_writer_close(writer: *mut c_void, error: *mut RawError) -> bool;
    fn glue_writer_leave(writer: *mut c_void);
    fn glue_writer_abort(writer: *mut c_void);
}

unsafe fn text_of<'a>(text: *const c_char) -> &'a str {
    CStr::from_ptr(text).to_str().unwrap_or("")
}

// A slice from C. The pointer may be NULL if it is empty.
unsafe fn slice_of<'a, T>(data: *const T, length: usize) -> &'a [T] {
    if length == 0 { &[] } else { slice::from_raw_parts(data, length) }
}

/// The version of the compiled bags.h.
pub fn version() -> &'static str {
    unsafe { text_of(glue_version()) }
}

// ---- errors ----

/// The kind of an error, like `bags_code` in bags.h. It tells a caller how to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    Other, Argument, State, Range, Field, Type, Value, Missing, Exists, Locked, Unfinished, Gap,
    Corrupt, Limit, Io, Memory, Changed,
}

/// An error from bags.h. The message names the file, the field and the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl Error {
    fn new(kind: ErrorKind, message: String) -> Error {
        Error { kind, message }
    }
}

// Call a function in glue.c with memory for its error.
fn with_error<T>(call: impl FnOnce(*mut RawError) -> Option<T>) -> Result<T> {
    use ErrorKind::*;
    const KINDS: [ErrorKind; 17] = [Other, Argument, State, Range, Field, Type, Value, Missing, Exists, Locked,
        Unfinished, Gap, Corrupt, Limit, Io, Memory, Changed];
    let mut raw = RawError { kind: 0, message: [0; 1024] };
    call(&mut raw).ok_or_else(|| {
        let message = unsafe { CStr::from_ptr(raw.message.as_ptr()) };
        Error::new(*KINDS.get(raw.kind as usize).unwrap_or(&Other), message.to_string_lossy().into_owned())
    })
}

fn c_string(text: &[u8]) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(ErrorKind::Argument, "a path or name contains NUL".into()))
}

#[cfg(unix)]
fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    c_string(path.as_os_str().as_bytes())
}

#[cfg(not(unix))]
fn c_path(path: &Path) -> Result<CString> {
    c_string(path.to_string_lossy().as_bytes())
}

// ---- values ----

/// The element type of an array, as named by NumPy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype(c_int);

impl Dtype {
    /// Accepts any of NumPy's spellings: "float32", "f4".
    pub fn parse(name: &str) -> Result<Dtype> {
        match unsafe { glue_dtype_parse(name.as_ptr(), name.len()) } {
            0 => Err(Error::new(ErrorKind::Type, format!("not a dtype: \"{name}\""))),
            dtype => Ok(Dtype(dtype)),
        }
    }
    pub fn name(self) -> &'static str {
        unsafe { text_of(glue_dtype_name(self.0)) }
    }
    /// Size of an element in bytes.
    pub fn size(self) -> usize {
        unsafe { glue_dtype_size(self.0) }
    }
}

/// A value in memory. `Blob` is an encoded blob that is stored unchanged. Readers never return
/// `Blob`, `Real` or `Bool`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Blob(&'a [u8]),
    Bytes(&'a [u8]),
    Text(&'a str),
    Uint(u64),
    Int(i64),
    Real(f64),
    Bool(bool),
    /// Elements in C order and native byte order.
    Array { dtype: Dtype, shape: &'a [u64], data: &'a [u8] },
}

impl<'a> Value<'a> {
    fn raw(&self) -> Result<RawValue> {
        let mut raw = RawValue { kind: 0, dtype: 0, uint: 0, sint: 0, real: 0.0, data: null(), size: 0, dims: 0, shape: null() };
        let mut bytes = |kind, data: &[u8]| {
            raw.kind = kind;
            raw.data = data.as_ptr();
            raw.size = data.len();
        };
        match *self {
            Value::Blob(data) => bytes(0, data),
            Value::Bytes(data) => bytes(1, data),
            Value::Text(text) => bytes(2, text.as_bytes()),
            Value::Uint(number) => (raw.kind, raw.uint) = (3, number),
            Value::Int(number) => (raw.kind, raw.sint) = (4, number),
            Value::Real(number) => (raw.kind, raw.real) = (5, number),
            Value::Bool(yes) => (raw.kind, raw.uint) = (6, yes as u64),
            Value::Array { dtype, shape, data } => {
                // bags.h reads as many bytes as the shape states.
                let size = shape.iter().try_fold(dtype.size() as u64, |size, n| size.checked_mul(*n));
                if size != Some(data.len() as u64) {
                    return Err(Error::new(ErrorKind::Value, format!(
                        "an array of {} with the shape {shape:?} has {} bytes", dtype.name(), data.len())));
                }
                bytes(7, data);
                raw.dtype = dtype.0;
                raw.dims = shape.len();
                raw.shape = shape.as_ptr();
            }
        }
        Ok(raw)
    }

    unsafe fn of(raw: &RawValue) -> Result<Value<'a>> {
        let data = || slice_of(raw.data, raw.size);
        Ok(match raw.kind {
            1 => Value::Bytes(data()),
            2 => Value::Text(std::str::from_utf8(data()).map_err(|error| Error::new(ErrorKind::Value, error.to_string()))?),
            3 => Value::Uint(raw.uint),
            4 => Value::Int(raw.sint),
            7 => Value::Array { dtype: Dtype(raw.dtype), shape: slice_of(raw.shape, raw.dims), data: data() },
            _ => Value::Blob(data()),
        })
    }
}

// ---- reading ----

/// A field: its name and its type, as in spec.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub kind: String,
}

/// How a reader treats an unfinished shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished { Refuse, Skip, Read }

/// Options of a reader, like `bags_reader_options` in bags.h.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    pub shard_start: u64,
    pub shard_stop: u64,
    pub unfinished: Unfinished,
    pub allow_gaps: bool,
    pub verify_checksums: bool,
    /// Read with explicit offsets. Truncating a file then causes an error, not SIGBUS.
    pub no_mmap: bool,
    /// Accept a file of 0 bytes as an empty Bag, as written by granular 0.20 and 0.21.
    pub allow_empty_file: bool,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions { shard_start: 0, shard_stop: 0, unfinished: Unfinished::Refuse, allow_gaps: false,
            verify_checksums: false, no_mmap: false, allow_empty_file: false }
    }
}

impl ReaderOptions {
    fn raw(&self) -> RawReaderOptions {
        RawReaderOptions { shard_start: self.shard_start, shard_stop: self.shard_stop,
            unfinished: self.unfinished as c_int, allow_gaps: self.allow_gaps,
            verify_checksums: self.verify_checksums, no_mmap: self.no_mmap, allow_empty_file: self.allow_empty_file }
    }
}

/// An open dataset. Threads may share it.
pub struct Reader {
    raw: NonNull<c_void>,
    fields: Vec<Field>,
}

unsafe impl Send for Reader {}
unsafe impl Sync for Reader {}

/// Memory that reads reuse, so that a loop does not allocate. Use one per thread.
pub struct Row {
    raw: NonNull<c_void>,
}

unsafe impl Send for Row {}

impl Row {
    /// Panics if out of memory.
    pub fn new() -> Row {
        Row { raw: NonNull::new(unsafe { glue_row_create() }).expect("out of memory") }
    }
}

impl Default for Row {
    fn default() -> Row {
        Row::new()
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        unsafe { glue_row_free(self.raw.as_ptr()) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        unsafe { glue_reader_close(self.raw.as_ptr()) }
    }
}

impl Reader {
    pub fn open(path: impl AsRef<Path>) -> Result<Reader> {
        Reader::open_with(path, &ReaderOptions::default())
    }

    pub fn open_with(path: impl AsRef<Path>, options: &ReaderOptions) -> Result<Reader> {
        let path = c_path(path.as_ref())?;
        let raw_options = options.raw();
        let raw = with_error(|error| NonNull::new(unsafe { glue_reader_open(path.as_ptr(), &raw_options, error) }))?;
        let mut reader = Reader { raw, fields: Vec::new() };
        for i in 0..unsafe { glue_reader_fields(raw.as_ptr()) } {
            let (mut name, mut kind) = (null(), null());
            unsafe {
                glue_reader_field(raw.as_ptr(), i, &mut name, &mut kind);
                reader.fields.push(Field { name: text_of(name).into(), kind: text_of(kind).into() });
            }
        }
        Ok(reader)
    }

    /// Number of datapoints in all shards.
    pub fn len(&self) -> u64 {
        unsafe { glue_reader_length(self.raw.as_ptr()) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fields, sorted by name. A field's position is its number.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The number of a field.
    pub fn field(&self, name: &str) -> Result<usize> {
        self.fields.iter().position(|field| field.name == name)
            .ok_or_else(|| Error::new(ErrorKind::Field, format!("no field \"{name}\"")))
    }

    /// Read all fields of a datapoint.
    pub fn get<'a>(&'a self, index: u64, row: &'a mut Row) -> Result<Datapoint<'a>> {
        let raw = row.raw;
        with_error(|error| unsafe { glue_reader_get(self.raw.as_ptr(), index, raw.as_ptr(), error) }.then_some(()))?;
        Ok(Datapoint { reader: self, raw, row: PhantomData })
    }

    /// Read one stored blob: item 0 of a plain field, or any item of a sequence. It is not
    /// copied if the file is mapped.
    pub fn view<'a>(&'a self, index: u64, field: usize, item: u64, row: &'a mut Row) -> Result<&'a [u8]> {
        let (mut data, mut size) = (null(), 0);
        with_error(|error| unsafe {
            glue_reader_view(self.raw.as_ptr(), index, field, item, row.raw.as_ptr(), &mut data, &mut size, error)
        }.then_some(()))?;
        Ok(unsafe { slice_of(data, size) })
    }

    /// Number of items in a datapoint's field; 1 for a plain field. Reads no blobs.
    pub fn items(&self, index: u64, field: usize, row: &mut Row) -> Result<u64> {
        let mut count = 0;
        with_error(|error| unsafe {
            glue_reader_items(self.raw.as_ptr(), index, field, row.raw.as_ptr(), &mut count, error)
        }.then_some(()))?;
        Ok(count)
    }

    /// Read all datapoints in order, using one row: `while let Some(pet) = rows.next()?`.
    pub fn rows(&self) -> Rows<'_> {
        Rows { reader: self, row: Row::new(), next: 0 }
    }
}

/// A datapoint, as read. It borrows its reader and its row.
pub struct Datapoint<'a> {
    reader: &'a Reader,
    raw: NonNull<c_void>,
    row: PhantomData<&'a mut Row>,
}

impl<'a> Datapoint<'a> {
    /// The only value of a plain field.
    pub fn value(&self, field: &str) -> Result<Value<'a>> {
        self.item(field, 0)
    }

    /// Number of items in a field; 1 for a plain field.
    pub fn items(&self, field: &str) -> Result<usize> {
        Ok(unsafe { glue_row_length(self.raw.as_ptr(), self.reader.field(field)?) })
    }

    /// Decode an item of a field.
    pub fn item(&self, field: &str, item: usize) -> Result<Value<'a>> {
        let slot = self.reader.field(field)?;
        let mut out = RawValue { kind: 0, dtype: 0, uint: 0, sint: 0, real: 0.0, data: null(), size: 0, dims: 0, shape: null() };
        with_error(|error| unsafe { glue_row_value(self.raw.as_ptr(), slot, item, &mut out, error) }.then_some(()))?;
        unsafe { Value::of(&out) }
    }

    /// An item of a field of type utf8.
    pub fn text(&self, field: &str, item: usize) -> Result<&'a str> {
        match self.item(field, item)? {
            Value::Text(text) => Ok(text),
            _ => Err(Error::new(ErrorKind::Type, format!("field \"{field}\" is not text"))),
        }
    }

    /// An item's stored blob.
    pub fn blob(&self, field: &str, item: usize) -> Result<&'a [u8]> {
        let slot = self.reader.field(field)?;
        let count = unsafe { glue_row_length(self.raw.as_ptr(), slot) };
        if item >= count {
            return Err(Error::new(ErrorKind::Range, format!("field \"{field}\": item {item} out of range (length {count})")));
        }
        let (mut data, mut size) = (null(), 0);
        unsafe {
            glue_row_bytes(self.raw.as_ptr(), slot, item, &mut data, &mut size);
            Ok(slice_of(data, size))
        }
    }
}

/// Iterates over all datapoints of a reader.
pub struct Rows<'a> {
    reader: &'a Reader,
    row: Row,
    next: u64,
}

impl Rows<'_> {
    /// The next datapoint, valid until the next call; None after the last.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Datapoint<'_>>> {
        if self.next >= self.reader.len() {
            return Ok(None);
        }
        self.next += 1;
        self.reader.get(self.next - 1, &mut self.row).map(Some)
    }
}

// ---- one file ----

/// An open file of blobs. Threads may share it.
pub struct Bag {
    raw: NonNull<c_void>,
}

unsafe impl Send for Bag {}
unsafe impl Sync for Bag {}

impl Bag {
    pub fn open(path: impl AsRef<Path>) -> Result<Bag> {
        Bag::open_with(path, &ReaderOptions::default())
    }

    /// Only the options `verify_checksums`, `no_mmap` and `allow_empty_file` apply.
    pub fn open_with(path: impl AsRef<Path>, options: &ReaderOptions) -> Result<Bag> {
        let path = c_path(path.as_ref())?;
        let raw_options = options.raw();
        let raw = with_error(|error| NonNull::new(unsafe { glue_bag_open(path.as_ptr(), &raw_options, error) }))?;
        Ok(Bag { raw })
    }

    /// Number of blobs.
    pub fn len(&self) -> u64 {
        unsafe { glue_bag_length(self.raw.as_ptr()) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Read a blob. It is not copied if the file is mapped.
    pub fn get<'a>(&'a self, index: u64, row: &'a mut Row) -> Result<&'a [u8]> {
        let (mut data, mut size) = (null(), 0);
        with_error(|error| unsafe {
            glue_bag_get(self.raw.as_ptr(), index, row.raw.as_ptr(), &mut data, &mut size, error)
        }.then_some(()))?;
        Ok(unsafe { slice_of(data, size) })
    }
}

impl Drop for Bag {
    fn drop(&mut self) {
        unsafe { glue_bag_close(self.raw.as_ptr()) }
    }
}

// ---- writing ----

/// Options of a writer, like `bags_writer_options` in bags.h.
#[derive(Clone, Debug, Default)]
pub struct WriterOptions {
    /// Bytes, or datapoints, per shard; 0: no limit.
    pub shard_size: u64,
    pub shard_length: u64,
    /// The number of this worker, and of all workers.
    pub shard_start: u64,
    pub shard_stop: u64,
    pub flush_seconds: f64,
    pub checksum: bool,
    pub any_type: bool,
}

/// Writes a dataset. `close` completes it. A writer that is dropped before `close` leaves its
/// shard unfinished: readers refuse it, and `bags recover` completes it.
pub struct Writer {
    raw: *mut c_void,
}

unsafe impl Send for Writer {}

impl Writer {
    /// Fields are pairs of a name and a type.
    pub fn open(path: impl AsRef<Path>, fields: &[(&str, &str)]) -> Result<Writer> {
        Writer::open_with(path, fields, &WriterOptions::default())
    }

    pub fn open_with(path: impl AsRef<Path>, fields: &[(&str, &str)], options: &WriterOptions) -> Result<Writer> {
        let path = c_path(path.as_ref())?;
        let texts = fields.iter()
            .map(|(name, kind)| Ok((c_string(name.as_bytes())?, c_string(kind.as_bytes())?)))
            .collect::<Result<Vec<_>>>()?;
        let raw_fields: Vec<_> = texts.iter()
            .map(|(name, kind)| RawField { name: name.as_ptr(), kind: kind.as_ptr() }).collect();
        let raw_options = RawWriterOptions { shard_size: options.shard_size, shard_length: options.shard_length,
            shard_start: options.shard_start, shard_stop: options.shard_stop, flush_seconds: options.flush_seconds,
            checksum: options.checksum, any_type: options.any_type };
        let raw = with_error(|error| NonNull::new(unsafe {
            glue_writer_open(path.as_ptr(), raw_fields.as_ptr(), raw_fields.len(), &raw_options, error)
        }))?;
        Ok(Writer { raw: raw.as_ptr() })
    }

    /// Append a datapoint, with a value (or the items of a sequence) for every field. It is
    /// written entirely or not at all.
    pub fn append(&mut self, entries: &[(&str, &[Value])]) -> Result<()> {
        let names = entries.iter().map(|(name, _)| c_string(name.as_bytes())).collect::<Result<Vec<_>>>()?;
        let values = entries.iter()
            .map(|(_, values)| values.iter().map(Value::raw).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        let raw: Vec<_> = names.iter().zip(&values)
            .map(|(name, values)| RawEntry { field: name.as_ptr(), values: values.as_ptr(), count: values.len() })
            .collect();
        with_error(|error| unsafe { glue_writer_append(self.raw, raw.as_ptr(), raw.len(), error) }.then_some(()))
    }

    /// Pass every complete datapoint to the system, so that it survives this process.
    pub fn flush(&mut self) -> Result<()> {
        with_error(|error| unsafe { glue_writer_flush(self.raw, error) }.then_some(()))
    }

    /// Flush, and wait for stable storage.
    pub fn sync(&mut self) -> Result<()> {
        with_error(|error| unsafe { glue_writer_sync(self.raw, error) }.then_some(()))
    }

    /// Discard refused datapoints, so that close can succeed without them.
    pub fn clear(&mut self) {
        unsafe { glue_writer_clear(self.raw) }
    }

    /// Number of appended datapoints.
    pub fn len(&self) -> u64 {
        unsafe { glue_writer_length(self.raw) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Complete the dataset. Returns the first failure of this writer.
    pub fn close(mut self) -> Result<()> {
        let raw = std::mem::replace(&mut self.raw, null_mut());
        with_error(|error| unsafe { glue_writer_close(raw, error) }.then_some(()))
    }

    /// Remove the unfinished shard.
    pub fn abort(mut self) {
        unsafe { glue_writer_abort(std::mem::replace(&mut self.raw, null_mut())) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            unsafe { glue_writer_leave(self.raw) }
        }
    }
}
