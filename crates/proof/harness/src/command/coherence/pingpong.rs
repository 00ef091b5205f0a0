//! Two processes that take turns with a lock file (Strata §3.4): make it, which one of them
//! can, count up in a shared file, remove it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use super::log::now;
use super::work::counter;

/// Arguments of `pingpong`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A new directory is made here
    dir: PathBuf,
    /// The program whose `run` makes players clients
    #[arg(long)]
    shale: Option<PathBuf>,
    /// So many of the two are clients
    #[arg(long, default_value_t = 2)]
    clients: u32,
    /// Rounds of both together
    #[arg(long, default_value_t = 20_000)]
    rounds: u64,
}

/// Arguments of `player`.
#[derive(Debug, clap::Args)]
pub struct PlayerOptions {
    dir: PathBuf,
    player: u64,
    rounds: u64,
}

/// Runs both and compares the counter; prints rounds in a second.
pub fn drive(options: &Options) -> io::Result<bool> {
    let dir = options.dir.join("pingpong");
    fs::create_dir(&dir)?;
    File::create(dir.join("count"))?;
    let begin = now();
    let start = |player: u32| -> io::Result<Child> {
        let program = std::env::current_exe()?;
        let mut command = match &options.shale {
            Some(shale) if player < options.clients => {
                let mut command = Command::new(shale);
                command
                    .env("SHALE_WARM_CALLS", "0")
                    .args(["run", "--"])
                    .arg(program);
                command
            }
            _ => Command::new(program),
        };
        command.args(["coherence", "player"]).arg(&dir);
        command.args([u64::from(player), options.rounds / 2].map(|n| n.to_string()));
        command.spawn()
    };
    let mut players = [start(0)?, start(1)?];
    let mut good = true;
    for player in &mut players {
        good &= player.wait()?.success();
    }
    let seconds = (now() - begin) as f64 / 1e9;
    let count = counter(&File::open(dir.join("count"))?)?;
    let wanted = options.rounds / 2 * 2;
    println!(
        "{} of two are clients: {count} of {wanted} rounds counted, {:.0} rounds/s",
        options.clients,
        wanted as f64 / seconds
    );
    fs::remove_dir_all(&dir)?;
    Ok(good && count == wanted)
}

/// One of the two. The counter's parity says whose turn it is, so that the lock file goes
/// from one to the other in every round.
pub fn play(options: &PlayerOptions) -> io::Result<bool> {
    let lock = options.dir.join("lock");
    let count = OpenOptions::new()
        .read(true)
        .write(true)
        .open(options.dir.join("count"))?;
    let mut done = 0;
    while done < options.rounds {
        match File::create_new(&lock) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::thread::yield_now();
                continue;
            }
            Err(error) => return Err(error),
        }
        let value = counter(&count)?;
        let mine = value % 2 == options.player;
        if mine {
            count.write_all_at(&(value + 1).to_le_bytes(), 0)?;
            done += 1;
        }
        fs::remove_file(&lock)?;
        if !mine {
            std::thread::yield_now();
        }
    }
    Ok(true)
}
