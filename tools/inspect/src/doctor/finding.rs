//! The results of the checks.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// No problem.
    Ok,
    /// A remark.
    Note,
    /// Works, but slowly or within low limits.
    Slow,
    /// Does not work.
    Broken,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub name: &'static str,
    /// Severity of the result.
    pub severity: Severity,
    /// The measured or read value.
    pub value: String,
    /// Consequence and advice; empty without a problem.
    pub advice: String,
}

impl Finding {
    pub(super) fn new(
        name: &'static str,
        severity: Severity,
        value: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { name, severity, value: value.into(), advice: advice.into() }
    }

    pub(super) fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self::new(name, Severity::Ok, value, "")
    }
}

/// The results of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Findings in the order of the checks.
    pub findings: Vec<Finding>,
    /// Whether any check failed.
    pub broken: bool,
}
