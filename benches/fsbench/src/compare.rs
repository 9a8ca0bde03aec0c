//! `compare`: makes the page of tables, plots and goals from collected results.
//!
//! Machines are shared and noisy. So a ratio is only ever taken between two runs of one repetition, which
//! follow each other closely. Shown is the median of those ratios with the smallest and the largest.

pub mod compression;
mod goals;
mod page;
mod plot;
mod results;
pub mod zoned;

use crate::fail::{Context, Result};
use clap::Args;
use results::Results;
use std::fs;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Opts {
    /// Results, one JSON object a line, tagged with work, peer and rep
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Lines `what<TAB>value` about machine and programs, for the top of the page
    #[arg(long)]
    facts: Option<PathBuf>,
    /// The page; without it the page goes to standard output, without plots
    #[arg(long, value_name = "FILE.md")]
    out: Option<PathBuf>,
}

pub fn run(o: &Opts) -> Result<()> {
    let mut lines = String::new();
    for path in &o.results {
        lines += &fs::read_to_string(path).with_context(|| path.display().to_string())?;
    }
    let results = Results::parse(&lines)?;
    let facts = match &o.facts {
        Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => String::new(),
    };
    let Some(out) = &o.out else {
        print!("{}", page::page(&results, &facts, None));
        return Ok(());
    };
    let plots = out.with_extension("");
    fs::create_dir_all(&plots).with_context(|| plots.display().to_string())?;
    let folder = plots.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    for section in page::sections() {
        if let Some(svg) = plot::plot(&results, &section) {
            fs::write(plots.join(format!("{}.svg", section.name)), svg)?;
        }
    }
    fs::write(out, page::page(&results, &facts, Some(&folder))).with_context(|| out.display().to_string())
}
