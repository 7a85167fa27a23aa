//! Print a dataset or a Bag, for a comparison with other readers: dump PATH
//!
//! Lines, whose parts are separated by tabs; items are hexadecimal, separated by commas:
//!
//!     length  DATAPOINTS
//!     field   NUMBER  TYPE   NAME
//!     value   INDEX   FIELD  COUNT  ITEM,ITEM...
use bags::{Bag, Reader, Result, Row};
use std::io::{BufWriter, Write};

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn dataset(path: &str, out: &mut impl Write) -> Result<()> {
    let (reader, mut row) = (Reader::open(path)?, Row::new());
    writeln!(out, "length\t{}", reader.len()).unwrap();
    for (number, field) in reader.fields().iter().enumerate() {
        writeln!(out, "field\t{number}\t{}\t{}", field.kind, field.name).unwrap();
    }
    for index in 0..reader.len() {
        let datapoint = reader.get(index, &mut row)?;
        for (number, field) in reader.fields().iter().enumerate() {
            let items = (0..datapoint.items(&field.name)?)
                .map(|item| datapoint.blob(&field.name, item).map(hex))
                .collect::<Result<Vec<_>>>()?;
            writeln!(out, "value\t{index}\t{number}\t{}\t{}", items.len(), items.join(",")).unwrap();
        }
    }
    Ok(())
}

fn bag(path: &str, out: &mut impl Write) -> Result<()> {
    let (bag, mut row) = (Bag::open(path)?, Row::new());
    writeln!(out, "length\t{}\nfield\t0\tbytes\tblob", bag.len()).unwrap();
    for index in 0..bag.len() {
        writeln!(out, "value\t{index}\t0\t1\t{}", hex(bag.get(index, &mut row)?)).unwrap();
    }
    Ok(())
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: dump PATH");
    let mut out = BufWriter::new(std::io::stdout());
    let done = if path.ends_with(".bag") { bag(&path, &mut out) } else { dataset(&path, &mut out) };
    out.flush().unwrap();
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
