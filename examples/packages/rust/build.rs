//! Compile bags.h with the C compiler. CC, CFLAGS and AR work as for make; BAGS_H names another
//! directory that contains bags.h.
use std::env;
use std::path::PathBuf;
use std::process::Command;

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let named = env::var_os("BAGS_H").map(PathBuf::from);
    let header = [named, Some(here.clone()), Some(here.join("../../.."))]
        .into_iter()
        .flatten()
        .find(|directory| directory.join("bags.h").exists())
        .expect("bags.h was not found: build in a clone, or set BAGS_H to its directory");
    let object = out.join("glue.o");
    let flags = env::var("CFLAGS").unwrap_or_default();
    run(Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-std=gnu11", "-O2", "-fPIC", "-c"])
        .args(flags.split_whitespace())
        .arg("-I")
        .arg(&header)
        .arg(here.join("src/glue.c"))
        .arg("-o")
        .arg(&object));
    run(Command::new(env::var("AR").unwrap_or_else(|_| "ar".into()))
        .arg("rcs")
        .arg(out.join("libbags_glue.a"))
        .arg(&object));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=bags_glue");
    println!("cargo:rerun-if-changed={}", header.join("bags.h").display());
    println!("cargo:rerun-if-changed=src/glue.c");
    for name in ["CC", "CFLAGS", "AR", "BAGS_H"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
}
