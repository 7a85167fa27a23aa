fn main() {
    println!("bags.h {}", bags::version());
}
