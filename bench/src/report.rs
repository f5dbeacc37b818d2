//! What a run prints, and the same as JSON: a table can only be printed through a [`Report`], so none is ever missing
//! in the file.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

/// Collects what a run prints.
#[derive(Debug, Serialize)]
pub struct Report {
    tool: &'static str,
    version: &'static str,
    command: Vec<String>,
    tables: Vec<TableData>,
    /// The standard output is for the JSON; tables go to the other one.
    #[serde(skip)]
    quiet: bool,
    /// The results that the tables were made of, in full.
    results: Vec<Value>,
}

/// A table: names of columns, and rows of cells as printed.
#[derive(Debug, Serialize)]
pub struct TableData {
    /// What it shows.
    pub title: String,
    /// The columns' names.
    pub columns: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
}

impl TableData {
    /// A table without rows.
    pub fn new<S: Into<String>>(title: impl Into<String>, columns: impl IntoIterator<Item = S>) -> TableData {
        TableData { title: title.into(), columns: columns.into_iter().map(Into::into).collect(), rows: vec![] }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn render(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_header(&self.columns);
        for row in &self.rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{}\n\n{table}\n", self.title)
    }
}

impl Report {
    /// An empty report of this process's command, to be written to `json` in the end.
    pub fn new(json: Option<&Path>) -> Report {
        Report {
            tool: "raidbench",
            version: env!("CARGO_PKG_VERSION"),
            command: std::env::args().skip(1).collect(),
            tables: vec![],
            quiet: json == Some(Path::new("-")),
            results: vec![],
        }
    }

    /// Prints a table and keeps it.
    pub fn print(&mut self, table: TableData) {
        if self.quiet {
            eprintln!("\n{}", table.render());
        } else {
            println!("\n{}", table.render());
        }
        self.tables.push(table);
    }

    /// Keeps a result.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn result(&mut self, result: &impl Serialize) -> Result<(), serde_json::Error> {
        self.results.push(serde_json::to_value(result)?);
        Ok(())
    }

    /// Writes all of it to a file, if one is named; `-` is the standard output.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: Option<&Path>) -> std::io::Result<()> {
        let Some(path) = path else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        if path == Path::new("-") {
            std::io::stdout().write_all(text.as_bytes())
        } else {
            File::create(path)?.write_all(text.as_bytes())
        }
    }
}

/// A number with few digits: enough for a comparison, not more than a noisy machine has.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => group(&format!("{x:.0}")),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// An integer with its thousands apart.
fn group(digits: &str) -> String {
    let mut out = String::new();
    let n = digits.len();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (n - i).is_multiple_of(3) && out != "-" {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_in_the_file() {
        let mut report = Report::new(None);
        let mut table = TableData::new("Rates", ["target", "IOPS"]);
        table.row(["one", "123"]);
        assert!(table.render().contains("| one"), "{}", table.render());
        report.print(table);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["tables"][0]["rows"][0][1], "123");
        assert_eq!(value["tables"][0]["columns"][1], "IOPS");
    }

    #[test]
    fn numbers() {
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(123.4), "123");
        assert_eq!(number(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(number(-123_456.0), "-123\u{202f}456");
    }
}
