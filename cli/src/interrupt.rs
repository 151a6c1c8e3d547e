//! Ctrl-C: it ends the answer that is being made; where none is, or pressed again, the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

/// The handler's two flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
    answering: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over Ctrl-C from the system. Once per process.
    pub(crate) fn install() -> anyhow::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let Interrupt { pressed, answering } = interrupt.clone();
        ctrlc::set_handler(move || {
            if !answering.load(Ordering::Relaxed) || pressed.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        })
        .context("Ctrl-C cannot be handled")?;
        Ok(interrupt)
    }

    /// From here to the end of `answer`, Ctrl-C sets the flag that it is given.
    pub(crate) fn during<T>(&self, answer: impl FnOnce(Arc<AtomicBool>) -> T) -> T {
        self.pressed.store(false, Ordering::Relaxed);
        self.answering.store(true, Ordering::Relaxed);
        let made = answer(Arc::clone(&self.pressed));
        self.answering.store(false, Ordering::Relaxed);
        made
    }
}
