//! `kubectl` as a user has it.

use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What a run of kubectl printed.
#[derive(Debug)]
pub struct Printed {
    /// Whether it exited 0.
    pub ok: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs kubectl with `arguments` and `input` on its standard input.
pub async fn kubectl(arguments: &[&str], input: &str) -> Printed {
    let mut child = Command::new("kubectl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl is on PATH; the make targets put it there");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(input.as_bytes()).await.expect("kubectl reads its input");
    drop(stdin);
    let output = child.wait_with_output().await.expect("kubectl ends");
    Printed {
        ok: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
