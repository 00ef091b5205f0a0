//! `cargo xtask figures`: the pictures of the README, drawn from data in the repository.
//!
//! | Picture | Data |
//! | --- | --- |
//! | `docs/machine.svg` | `docs/machine.json`: boxes, arrows, captions |
//! | `docs/plot.svg` | the table of `docs/runs/2026-11-28-ssd.md`, every row of it |
//!
//! `--check` fails where a picture is not what its data says.

mod machine;
mod plot;
mod svg;

use std::path::Path;

use crate::error::{Error, read};

/// Whether to write the files or only to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Rewrite them.
    Write,
    /// Fail where one is not as it would be written.
    Check,
}

/// How a picture is drawn from its data; what is wrong with the data.
type Draw = fn(&str) -> Result<String, String>;

/// Data, picture, and how it is drawn.
const FIGURES: [(&str, &str, Draw); 2] = [
    ("docs/machine.json", "docs/machine.svg", machine::draw),
    ("docs/runs/2026-11-28-ssd.md", "docs/plot.svg", plot::draw),
];

/// Draws all pictures, or checks that they are current.
pub fn run(root: &Path, mode: Mode) -> Result<(), Error> {
    for (data, picture, draw) in FIGURES {
        let drawn = draw(&read(&root.join(data))?)
            .map_err(|why| Error::Figure(format!("{data}: {why}")))?;
        let path = root.join(picture);
        let is_current = std::fs::read_to_string(&path).is_ok_and(|there| there == drawn);
        match (is_current, mode) {
            (true, _) => println!("figures: {picture} is current"),
            (false, Mode::Check) => {
                return Err(Error::Figure(format!(
                    "{picture} is not what {data} says; run `cargo xtask figures`"
                )));
            }
            (false, Mode::Write) => {
                std::fs::write(&path, drawn).map_err(|source| Error::File { path, source })?;
                println!("figures: {picture} rewritten");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The repository that this crate is in.
    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
    }

    #[test]
    fn a_picture_that_is_not_what_its_data_says_is_found() {
        let place = tempfile::tempdir().unwrap();
        for (data, picture, _) in FIGURES {
            for file in [data, picture] {
                let copy = place.path().join(file);
                std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
                std::fs::copy(root().join(file), copy).unwrap();
            }
        }
        let check = || run(place.path(), Mode::Check);
        check().unwrap();
        let plot = place.path().join("docs/plot.svg");
        let text = std::fs::read_to_string(&plot).unwrap();
        std::fs::write(&plot, text.replacen("SQLite", "sqlite", 1)).unwrap();
        assert!(check().is_err());
        run(place.path(), Mode::Write).unwrap();
        check().unwrap();
        let run_of = place.path().join("docs/runs/2026-11-28-ssd.md");
        let text = std::fs::read_to_string(&run_of).unwrap();
        let raised = text.replacen("0.81", "1.81", 100);
        assert_ne!(raised, text);
        std::fs::write(&run_of, raised).unwrap();
        assert!(check().is_err());
    }
}
