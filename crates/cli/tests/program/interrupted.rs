//! The program when Ctrl-C is pressed, or when it is told to end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use candle_blocks::candle_core::{DType, Device, Tensor};

use crate::said::assert_says;
use crate::scratch::{Scratch, program};

/// Runs a command, interrupts it in the midst of its work, and demands that it ends as interrupted and names what it kept.
pub fn interrupted(command: &mut Command, kept: &str) {
    ended_by("INT", 130, command, kept);
}

/// Like `interrupted`, with the signal's name and the expected exit status.
pub fn ended_by(signal: &str, status: i32, command: &mut Command, kept: &str) {
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_work(&child);
    let kill = Command::new("kill")
        .args([&format!("-{signal}"), &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let done = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(status), "{stderr}");
    assert_says(&stderr, &["interrupted", kept]);
}

/// Waits until a program has computed for a second of processor time, which under load takes longer than a second.
fn wait_for_work(child: &Child) {
    let begin = Instant::now();
    loop {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "nothing is computed"
        );
        std::thread::sleep(Duration::from_millis(20));
        let time = Command::new("ps")
            .args(["-o", "time=", "-p", &child.id().to_string()])
            .output();
        let time = String::from_utf8(time.unwrap().stdout).unwrap();
        // Hours, minutes and seconds; a Mac adds their fractions.
        let whole = time.split('.').next().unwrap();
        if whole.contains(|c: char| ('1'..='9').contains(&c)) {
            return;
        }
    }
}

/// The names of signals that end a program, and their values.
const SIGNALS: [(&str, i32); 3] = [("INT", 2), ("TERM", 15), ("HUP", 1)];

/// Every file and directory below a directory whose name is a temporary one.
fn temporary(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let each = entries.flat_map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        let is_temporary = name.starts_with(".tmp") || name.starts_with(".saving-");
        let own = is_temporary.then(|| entry.path());
        own.into_iter().chain(temporary(&entry.path()))
    });
    each.collect()
}

/// Sends a signal as soon as something temporary is below a directory; `None` if the program was faster.
fn ended_while_writing(child: &mut Child, signal: &str, directory: &Path) -> Option<ExitStatus> {
    let begin = Instant::now();
    while temporary(directory).is_empty() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "nothing is written"
        );
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let kill = Command::new("kill")
        .args([&format!("-{signal}"), &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    Some(child.wait().unwrap())
}

#[test]
fn quantizing_that_a_signal_ends_leaves_nothing() {
    let model = "families/llama";
    if !crate::weights::is_present(model) {
        return;
    }
    let scratch = Scratch::of(model);
    // Words enough that the file is still being written when the signal comes.
    let n_words = 250_000;
    scratch.change_weights(|tensors| {
        for (name, tensor) in tensors {
            let mut shape = tensor.dims().to_vec();
            shape.iter_mut().filter(|n| **n == 12).for_each(|n| *n = 32);
            if ["model.embed_tokens.weight", "lm_head.weight"].contains(&name.as_str()) {
                shape[0] = n_words;
            }
            *tensor = Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        }
    });
    let config = fs::read(scratch.config()).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = n_words.into();
    config["hidden_size"] = 32.into(); // whole groups
    fs::write(scratch.config(), config.to_string()).unwrap();
    let note = "note: interrupted; nothing was written";
    for (to, output) in [("q8_0", "model.gguf"), ("w4a16", "folder")] {
        let mut whole = program();
        whole.arg("quantize").arg("--model").arg(scratch.model());
        whole.args(["--to", to, "--group", "32", "--output"]);
        let whole = whole
            .arg(scratch.path("whole").join(output))
            .output()
            .unwrap();
        let stderr = String::from_utf8(whole.stderr).unwrap();
        assert!(
            whole.status.success() && !stderr.contains(note),
            "{to}: {stderr}"
        );
        for (signal, number) in SIGNALS {
            let mut n_ended = 0;
            for _ in 0..5 {
                let folder = scratch.path("out");
                let mut command = program();
                command.arg("quantize").arg("--model").arg(scratch.model());
                command.args(["--to", to, "--group", "32", "--replace", "--output"]);
                command.arg(folder.join(output)).stderr(Stdio::piped());
                let mut child = command.stdout(Stdio::null()).spawn().unwrap();
                let ended = ended_while_writing(&mut child, signal, &folder);
                let stderr = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
                assert!(temporary(&folder).is_empty(), "{to} {signal}");
                if let Some(status) = ended.filter(|status| !status.success()) {
                    assert_eq!(status.code(), Some(128 + number), "{to} {signal}");
                    assert_says(&stderr, &[note]);
                    n_ended += 1;
                    break;
                }
                assert!(!stderr.contains(note), "{to} {signal}: {stderr}");
            }
            assert_eq!(
                n_ended, 1,
                "{to} {signal}: the program was faster each time"
            );
        }
    }
}

/// Answers like a Hub, but sends only half the weights.
fn stalling_hub(stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let commit = "a".repeat(40);
    let sizes = [("config.json", 2), ("model.safetensors", 1_000_000)];
    let file = sizes
        .iter()
        .find(|(name, _)| first.contains(&format!("/{name} ")));
    let body = match file {
        None if first.contains("/revision/") => format!(r#"{{"sha": "{commit}"}}"#),
        None => {
            let entry = |(name, size): &(&str, usize)| {
                format!(r#"{{"type": "file", "path": "{name}", "size": {size}}}"#)
            };
            format!(
                "[{}]",
                sizes.iter().map(entry).collect::<Vec<_>>().join(",")
            )
        }
        Some(&(_, 2)) => "{}".to_string(),
        Some(_) => "x".repeat(1000),
    };
    let length = file.map_or(body.len(), |&(_, size)| size);
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\netag: \"{length}\"\r\nx-repo-commit: {commit}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    )?;
    if first.starts_with("HEAD") {
        return Ok(());
    }
    stream.write_all(body.as_bytes())?;
    // Until the program closes it.
    std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
}

#[test]
fn a_download_that_a_signal_ends_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || stalling_hub(stream).ok());
        }
    });
    for (signal, number) in SIGNALS {
        let cache = tempfile::tempdir().unwrap();
        let mut command = program();
        command.args(["inspect", "--hub", "owner/tiny"]);
        command
            .env("HF_ENDPOINT", &address)
            .env("HF_HUB_CACHE", cache.path());
        command
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("HF_HUB_OFFLINE");
        let command = command.stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let status = ended_while_writing(&mut child, signal, cache.path()).unwrap();
        assert_eq!(status.signal(), Some(number), "{status:?}");
        assert!(temporary(cache.path()).is_empty(), "{signal}");
        let blobs = fs::read_dir(cache.path().join("models--owner--tiny/blobs")).unwrap();
        assert!(blobs.count() <= 1, "only config.json may be there");
    }
}
