//! Records the commit of the source, where git is at hand.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=COTENSOR_COMMIT");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // A source archive or a package has no repository, or that of another project.
    let is_ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    if let Some(head) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|_| is_ours) {
        println!("cargo:rerun-if-changed={head}");
    }
    let given = std::env::var("COTENSOR_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| is_ours)) {
        println!("cargo:rustc-env=COTENSOR_COMMIT={commit}");
    }
}
