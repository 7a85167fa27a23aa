//! Print each datapoint of a dataset or a Bag as a line of JSON. The values are the stored bytes
//! in base64. tests/conformance/run.py runs this program.
use bags::{Bag, Reader, ReaderOptions, Result, Row};
use std::io::{BufWriter, Write};

fn base64(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in data.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | *part.get(i).unwrap_or(&0) as usize);
        for i in 0..4 {
            out.push(if i <= part.len() { DIGITS[bits >> (18 - 6 * i) & 63] as char } else { '=' });
        }
    }
    format!("\"{out}\"")
}

fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c < ' ' => format!("\\u{:04x}", c as u32),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

fn dataset(path: &str, out: &mut impl Write) -> Result<()> {
    let (reader, mut row) = (Reader::open(path)?, Row::new());
    for index in 0..reader.len() {
        let (mut members, datapoint) = (Vec::new(), reader.get(index, &mut row)?);
        for field in reader.fields() {
            let items = (0..datapoint.items(&field.name)?)
                .map(|item| datapoint.blob(&field.name, item).map(base64))
                .collect::<Result<Vec<_>>>()?
                .join(", ");
            let value = if field.kind.ends_with("[]") { format!("[{items}]") } else { items };
            members.push(format!("{}: {value}", quoted(&field.name)));
        }
        writeln!(out, "{{{}}}", members.join(", ")).unwrap();
    }
    Ok(())
}

fn bag(path: &str, out: &mut impl Write) -> Result<()> {
    let options = ReaderOptions { allow_empty_file: true, ..Default::default() };
    let (bag, mut row) = (Bag::open_with(path, &options)?, Row::new());
    for index in 0..bag.len() {
        writeln!(out, "{{\"blob\": {}}}", base64(bag.get(index, &mut row)?)).unwrap();
    }
    Ok(())
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: reader PATH");
    let mut out = BufWriter::new(std::io::stdout());
    let done = if path.ends_with(".bag") { bag(&path, &mut out) } else { dataset(&path, &mut out) };
    out.flush().unwrap();
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
