//! How a run can end other than well, and the exit code of each.

use std::fmt;

/// Why a run failed.
#[derive(Debug)]
pub enum Failure {
    /// Wrong arguments, or a confirmation that was not given: exit code 2.
    Usage(String),
    /// The run could not be done or finished: exit code 3.
    Run(String),
    /// The run was finished, and had failed I/Os or wrong data: exit code 1.
    Errors(String),
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Errors(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Run(_) => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(text) | Failure::Run(text) | Failure::Errors(text)) = self;
        f.write_str(text)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::Run(format!("a result cannot be written as JSON: {error}"))
    }
}
