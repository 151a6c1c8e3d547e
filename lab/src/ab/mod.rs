//! Is the difference real? Two arms, interleaved, against the noise of one arm against itself.
//!
//! The ten rules in order: preflight (the caller's, [`crate::preflight`]), what was applied, the same answer, the noise floor, amortisation,
//! residency, interleaving, the expectation, the verdict, and how many models a claim held on. It knows arms through their trait
//! and time through a clock.

mod amortise;
mod claim;
mod expect;
mod run;
#[cfg(test)]
mod tests;

pub use amortise::{Amortised, amortise};
pub use claim::{Claim, claim};
pub use expect::Expectation;
pub use run::{Lab, Options, Outcome, Progress, ratios, rotation_control, run};
