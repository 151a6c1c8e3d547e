//! Progress on standard error: a bar where a person watches, nothing where nobody does.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `total` bytes.
pub(crate) fn bytes(label: impl Into<String>, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(label.into());
    bar
}

/// A bar over `total` steps of work, with the time left.
pub(crate) fn steps(label: impl Into<String>, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(label.into());
    bar
}

/// A note to the person, beside the result.
pub(crate) fn note(text: impl AsRef<str>) {
    // Grey where colours are understood, so that notes do not read as the answer.
    if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        eprintln!("\x1b[2m{}\x1b[0m", text.as_ref());
    } else {
        eprintln!("{}", text.as_ref());
    }
}
