//! Reading after writing; errors; threads; dropped writers.
use bags::*;
use std::path::PathBuf;

// A directory for a test, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("bags-rust-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const FIELDS: [(&str, &str); 6] = [("array", "array(float32,2)"), ("bytes", "bytes"), ("half", "array(float64)"),
    ("number", "u64"), ("signed", "i64"), ("words", "utf8[]")];

fn write(path: &PathBuf, count: u64, options: &WriterOptions) -> Result<()> {
    let mut writer = Writer::open_with(path, &FIELDS, options)?;
    for i in 0..count {
        let array: Vec<u8> = [i as f32, -1.5].iter().flat_map(|number| number.to_ne_bytes()).collect();
        let words = vec![Value::Text("w"); (i % 3) as usize];
        writer.append(&[
            ("array", &[Value::Array { dtype: Dtype::parse("float32")?, shape: &[2], data: &array }]),
            ("bytes", &[Value::Bytes(&vec![i as u8; i as usize])]),
            ("half", &[Value::Real(0.5)]),
            ("number", &[Value::Uint(u64::MAX - i)]),
            ("signed", &[Value::Int(-(i as i64))]),
            ("words", &words),
        ])?;
    }
    assert_eq!(writer.len(), count);
    writer.close()
}

fn check(reader: &Reader, i: u64, row: &mut Row) {
    let datapoint = reader.get(i, row).unwrap();
    match datapoint.value("array").unwrap() {
        Value::Array { dtype, shape, data } => {
            assert_eq!((dtype.name(), shape), ("float32", &[2][..]));
            assert_eq!(data[..4], (i as f32).to_ne_bytes());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(datapoint.value("bytes").unwrap(), Value::Bytes(&vec![i as u8; i as usize]));
    assert_eq!(datapoint.value("number").unwrap(), Value::Uint(u64::MAX - i));
    assert_eq!(datapoint.items("words").unwrap(), (i % 3) as usize);
    for item in 0..(i % 3) as usize {
        assert_eq!(datapoint.text("words", item).unwrap(), "w");
    }
    assert_eq!(datapoint.item("words", (i % 3) as usize).unwrap_err().kind, ErrorKind::Range);
    assert_eq!(datapoint.blob("words", (i % 3) as usize).unwrap_err().kind, ErrorKind::Range);
    assert_eq!(datapoint.blob("number", 0).unwrap(), (u64::MAX - i).to_le_bytes());
}

#[test]
fn threads_read_what_was_written() {
    let path = Scratch::new("threads");
    let options = WriterOptions { shard_length: 30, checksum: true, ..Default::default() };
    write(&path.0, 100, &options).unwrap();
    for (verify_checksums, no_mmap) in [(false, false), (true, true)] {
        let options = ReaderOptions { verify_checksums, no_mmap, ..Default::default() };
        let reader = Reader::open_with(&path.0, &options).unwrap();
        assert_eq!(reader.len(), 100);
        assert_eq!(reader.fields()[0], Field { name: "array".into(), kind: "array(float32,2)".into() });
        std::thread::scope(|scope| {
            for first in 0..4 {
                let reader = &reader;
                scope.spawn(move || {
                    let mut row = Row::new();
                    (first..100).step_by(4).for_each(|i| check(reader, i, &mut row));
                });
            }
        });
        let (mut rows, mut count) = (reader.rows(), 0);
        while let Some(datapoint) = rows.next().unwrap() {
            assert_eq!(datapoint.value("bytes").unwrap(), Value::Bytes(&vec![count as u8; count]));
            count += 1;
        }
        assert_eq!(count, 100);
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let path = Scratch::new("errors");
    assert_eq!(Reader::open(&path.0).err().unwrap().kind, ErrorKind::Missing);
    assert_eq!(Reader::open("a\0b").err().unwrap().kind, ErrorKind::Argument);
    write(&path.0, 3, &WriterOptions::default()).unwrap();
    assert_eq!(Writer::open(&path.0, &FIELDS).err().unwrap().kind, ErrorKind::Exists);
    let (reader, mut row) = (Reader::open(&path.0).unwrap(), Row::new());
    let error = reader.get(3, &mut row).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Range);
    assert!(error.to_string().ends_with("datapoint index 3 out of range (length 3)"), "{error}");
    assert_eq!(reader.view(0, 99, 0, &mut row).err().unwrap().kind, ErrorKind::Field);
    assert_eq!(reader.get(0, &mut row).unwrap().value("x").unwrap_err().kind, ErrorKind::Field);
    let bad = Scratch::new("types");
    assert_eq!(Writer::open(&bad.0, &[("a", "int(")]).err().unwrap().kind, ErrorKind::Type);
}

#[test]
fn a_refused_datapoint_is_the_error_of_close() {
    let path = Scratch::new("refused");
    let mut writer = Writer::open(&path.0, &[("a", "int(1)"), ("b", "array(int16)")]).unwrap();
    let dtype = Dtype::parse("int16").unwrap();
    let array = |data| Value::Array { dtype, shape: &[], data };
    assert_eq!(writer.append(&[("a", &[Value::Uint(300)]), ("b", &[array(&[1, 0])])]).unwrap_err().kind, ErrorKind::Value);
    assert_eq!(writer.append(&[("a", &[Value::Uint(3)])]).unwrap_err().kind, ErrorKind::Field);
    // The size of an array must match its shape.
    assert_eq!(writer.append(&[("a", &[Value::Uint(3)]), ("b", &[array(&[1])])]).unwrap_err().kind, ErrorKind::Value);
    writer.append(&[("b", &[array(&[1, 0])]), ("a", &[Value::Uint(3)])]).unwrap();
    assert!(writer.close().unwrap_err().message.contains("300"));
    assert_eq!(Reader::open(&path.0).unwrap().len(), 1);
}

#[test]
fn a_writer_that_is_dropped_leaves_its_shard_unfinished() {
    let path = Scratch::new("dropped");
    let mut writer = Writer::open(&path.0, &[("a", "int(1)")]).unwrap();
    writer.append(&[("a", &[Value::Uint(3)])]).unwrap();
    drop(writer);
    assert_eq!(Reader::open(&path.0).err().unwrap().kind, ErrorKind::Unfinished);
    let options = ReaderOptions { unfinished: Unfinished::Read, ..Default::default() };
    assert_eq!(Reader::open_with(&path.0, &options).unwrap().len(), 1);
    let gone = Scratch::new("aborted");
    Writer::open(&gone.0, &[("a", "int(1)")]).unwrap().abort();
    assert_eq!(Reader::open(&gone.0).err().unwrap().kind, ErrorKind::Missing);
}

#[test]
fn the_version_is_that_of_the_header() {
    assert!(version().split('.').all(|part| part.parse::<u32>().is_ok()));
}
