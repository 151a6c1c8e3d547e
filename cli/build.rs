//! Leaves the commit in the binary, so that stored results can say what made them. A build outside a repository has none.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // HEAD's log changes with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let revision = git(&["describe", "--always", "--dirty=+", "--abbrev=12"]).unwrap_or_default();
    println!("cargo:rustc-env=PLUMB_REVISION={revision}");
    println!("cargo:rustc-env=PLUMB_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
}
