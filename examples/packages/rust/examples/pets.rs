//! Write a dataset of pets, and read it: cargo run --example pets DIRECTORY
use bags::{Reader, Result, Row, Value, Writer};

fn write(path: &str) -> Result<()> {
    let mut writer = Writer::open(path, &[("label", "int(4)"), ("words", "utf8[]")])?;
    for (label, words) in [(7, vec!["a", "cat"]), (8, vec!["two", "old", "dogs"]), (9, vec![])] {
        let words: Vec<_> = words.into_iter().map(Value::Text).collect();
        writer.append(&[("label", &[Value::Uint(label)]), ("words", &words)])?;
    }
    writer.close()
}

fn read(path: &str) -> Result<()> {
    let reader = Reader::open(path)?;
    for field in reader.fields() {
        println!("{}: {}", field.name, field.kind);
    }
    // Read all datapoints in order.
    let mut rows = reader.rows();
    while let Some(pet) = rows.next()? {
        println!("{:?}, {} words", pet.value("label")?, pet.items("words")?);
    }
    // View one item of one datapoint without a copy.
    let mut row = Row::new();
    let word = reader.view(0, reader.field("words")?, 1, &mut row)?;
    println!("{}", String::from_utf8_lossy(word));
    // An error names the file, the field and the index.
    println!("{}", reader.get(3, &mut row).err().unwrap());
    Ok(())
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: pets DIRECTORY");
    if let Err(error) = write(&path).and_then(|_| read(&path)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
