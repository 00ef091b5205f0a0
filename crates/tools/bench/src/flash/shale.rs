//! Shale with emulated flash below NVM, as the programs make and mount it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Counters;
use crate::BenchError;
use crate::Result;
use crate::programs::run;

/// The volume to make.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program `shale`.
    pub program: PathBuf,
    /// Bytes of NVM, emulated by memory.
    pub nvm_bytes: u64,
    /// Bytes of flash.
    pub flash_bytes: u64,
    /// Bytes of a zone; `None`: as mkfs has it.
    pub zone_bytes: Option<u64>,
}

/// A mounted volume; all of it goes with it.
pub struct Volume {
    program: PathBuf,
    file: PathBuf,
    mountpoint: PathBuf,
    _place: tempfile::TempDir,
    _nvm: tempfile::TempDir,
}

fn directory(within: &Path) -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new()
        .prefix("shale-flash-")
        .tempdir_in(within);
    dir.map_err(BenchError::file(within, "make a directory in"))
}

impl Volume {
    /// Makes one and mounts it.
    ///
    /// # Errors
    /// The programs refuse.
    pub fn new(options: &Options) -> Result<Self> {
        let place = directory(&std::env::temp_dir())?;
        let nvm = directory(Path::new("/dev/shm"))?;
        let (file, mountpoint) = (place.path().join("VOLUME.toml"), place.path().join("mount"));
        std::fs::create_dir(&mountpoint).map_err(BenchError::file(&mountpoint, "make"))?;
        let zone = options.zone_bytes.map(|bytes| format!(":{bytes}"));
        let flash = format!(
            "{}:{}{},kind=open-channel",
            place.path().join("flash.img").display(),
            options.flash_bytes,
            zone.unwrap_or_default()
        );
        let nvm_place = format!("{}:{}", nvm.path().join("nvm").display(), options.nvm_bytes);
        let mut mkfs = Command::new(&options.program);
        mkfs.arg("mkfs").arg(&file);
        run(mkfs.args(["--nvm", &nvm_place, "--ssd", &flash]))?;
        let volume = Volume {
            program: options.program.clone(),
            file,
            mountpoint,
            _place: place,
            _nvm: nvm,
        };
        volume.mount()?;
        Ok(volume)
    }

    fn mount(&self) -> Result<()> {
        let mut mount = Command::new(&self.program);
        run(mount.arg("mount").args([&self.file, &self.mountpoint])).map(drop)
    }

    fn unmount(&self) -> Result<()> {
        let mut unmount = Command::new(&self.program);
        run(unmount.arg("umount").arg(&self.mountpoint)).map(drop)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts and mounts it; counters restart.
    ///
    /// # Errors
    /// The programs refuse.
    pub fn mount_again(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// What has been counted since it was mounted, and bytes written to NVM.
    ///
    /// # Errors
    /// It does not answer.
    pub fn counters(&self) -> Result<(Counters, u64)> {
        let mut status = Command::new(&self.program);
        let said = run(status.arg("status").arg(&self.mountpoint).arg("--json"))?;
        let said: Value = serde_json::from_str(&said).map_err(|e| BenchError::Program {
            program: "shale status".to_owned(),
            found: e.to_string(),
        })?;
        Ok((counters(&said), nvm_bytes(&said)))
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn counters(status: &Value) -> Counters {
    let device = &status["tiers"][0]["devices"][0];
    let (flash, moved) = (&device["flash"], &status["migration"]);
    let page_bytes = number(&flash["page_bytes"]).max(1);
    Counters {
        device_bytes: number(&device["total_bytes"]),
        // What comes from NVM and the log is what a file system has to write; what cleaning moves is its own.
        blocks_written: (number(&moved["down_bytes"]) + number(&moved["direct_to_tier_bytes"]))
            / super::load::BLOCK_BYTES as u64,
        flushes: number(&device["flushes"]),
        pages_read: number(&flash["pages_read"]),
        pages_programmed: number(&flash["pages_programmed"]),
        pages_moved: number(&moved["cleaned_bytes"]).div_ceil(page_bytes),
        blocks_erased: number(&flash["blocks_erased"]),
        out_of_order: number(&flash["out_of_order"]) + number(&status["tiers"][0]["out_of_order"]),
        device_ns: number(&flash["device_ns"]),
        ..Counters::default()
    }
}

/// Logs, data, structure and journal.
fn nvm_bytes(status: &Value) -> u64 {
    let clients = status["clients"].as_array().into_iter().flatten();
    let clients: u64 = clients.map(|c| number(&c["written"]["nvm_bytes"])).sum();
    let own = status["device"].as_array().into_iter().flatten();
    let own = own.filter(|d| d["path"] == "structure" || d["path"] == "journal");
    let own: u64 = own.map(|d| number(&d["bytes_stored"])).sum();
    clients + number(&status["written_by_others"]["nvm_bytes"]) + own
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("shale-harness: {error}");
        }
    }
}
