//! A block device as slow as a model, for any file system.
//!
//! An image file, read and written past the page cache, with a [`Timed`] in front; served as
//! [`crate::flash::serve`] says. Nothing below the file system that is put on it caches, so each request
//! that the file system sends takes the time of the model (and that of the way through the kernel).

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shale_block::{BlockFile, BlockModel, TierDevice, Timed};
use shale_nvm::{Model, Pace};
use shale_sys::SystemClock;

use crate::Result;
use crate::flash::serve::serve_device;

/// The device to serve.
#[derive(Debug, Clone)]
pub struct Options {
    /// File that keeps it; made if there is none.
    pub image: PathBuf,
    /// Bytes of a new one.
    pub bytes: u64,
    /// How slow it is.
    pub model: BlockModel,
}

/// A model by its name: of a device, or of NVM that is used as one (HiNFS §5.1).
///
/// # Errors
/// It is none; says which there are.
pub fn model_named(name: &str) -> std::result::Result<BlockModel, String> {
    let of_nvm = || Model::named(name).map(BlockModel::Nvm);
    let known = || format!("{}, {}", BlockModel::NAMES.join(", "), Model::NAMES);
    let found = BlockModel::named(name).or_else(of_nvm);
    found.ok_or_else(|| format!("'{name}' is no model; known: {}", known()))
}

/// What it has done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are those of shale_block")]
pub struct Counters {
    pub model: String,
    pub requests: u64,
    pub delayed_ns: u64,
    /// Requests that did not go on where the last one ended, of a disk.
    pub seeks: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discarded_bytes: u64,
}

impl Counters {
    fn of(device: &Timed<BlockFile>) -> Self {
        let (counts, model) = (device.counts(), device.model());
        Counters {
            model: model.map_or("none", |m| m.name).to_owned(),
            requests: model.map_or(0, |m| m.requests),
            delayed_ns: model.map_or(0, |m| m.delayed_ns),
            seeks: model.map_or(0, |m| m.seeks),
            read_bytes: counts.read_bytes,
            written_bytes: counts.written_bytes,
            flushes: counts.flushes,
            discarded_bytes: counts.discarded_bytes,
        }
    }
}

/// Serves until `input` ends; speaks on `output`.
///
/// # Errors
/// The image cannot be made or opened; as [`serve_device`].
pub fn serve(options: &Options, input: impl BufRead, output: impl Write) -> Result<()> {
    BlockFile::create(&options.image, options.bytes)?;
    let file = BlockFile::open(&options.image, options.bytes)?;
    let pace = Pace::of_real_time(Arc::new(SystemClock::new()));
    let device = Arc::new(Timed::new(file, options.model, pace));
    let answer = |line: &str| (line == "counters").then(|| Counters::of(&device));
    serve_device(&device, answer, input, output)
}
