//! Two processes that write to one place at once: both are done, and it has the files of the last, whole.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::faults::{Files, OPERATIONS, contents, folder, old, said, set};

#[test]
fn writers_at_once_leave_the_files_of_one_of_them() {
    let mut lasted = [0, 0];
    for name in OPERATIONS {
        let write = |target: &Path, writer: u64| {
            let mut process = Command::new(env::current_exe().unwrap());
            let of_test = ["--exact", "faults::traced", "--ignored", "--nocapture"];
            set(process.args(of_test), (name, target), writer)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let each = [0, 1].map(|writer| {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("target");
            assert!(write(&target, writer).wait().unwrap().success(), "{name}");
            contents(&target)
        });
        assert!(each[0] != each[1] && !each[0].is_empty(), "{name}");
        for round in 0..6 {
            // With and without an old one.
            let before = if round % 2 == 0 {
                &Files::new()
            } else {
                &old(name, &each[0])
            };
            let folder = folder(before);
            let target = folder.path().join("target");
            let writers = [0, 1].map(|writer| write(&target, writer));
            let outputs = writers.map(|writer| writer.wait_with_output().unwrap().stdout);
            let outputs = outputs.map(|bytes| String::from_utf8(bytes).unwrap());
            let said = outputs.each_ref().map(|text| said(text).unwrap());
            let found = contents(&target);
            let last = each.iter().position(|files| *files == found);
            let last = last.unwrap_or_else(|| panic!("{name}: the files of neither; {said:?}"));
            assert_eq!(said, ["done"; 2], "{name}");
            let n_beside = fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(n_beside, 1, "{name}: something is left over");
            lasted[last] += 1;
        }
    }
    println!("last was {lasted:?}");
}
