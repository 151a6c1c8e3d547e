//! Statistics of paired samples: medians, a block bootstrap, the noise floor and the verdict. It does not know what was timed.
