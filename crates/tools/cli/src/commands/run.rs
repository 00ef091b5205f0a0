//! `shale run`: a command with the library that serves its calls in its own process.
//!
//! The library finds the mounted volumes by itself, when the command opens a file. Without
//! `--report` this process becomes the command, so there is nothing in between.

use crate::failure::{Failure, Result};
use crate::mounts::mount_table;
use crate::service::supervise;
use shale_status::run_report::Summary;
use shale_sys::size;
use shale_sys::{printable, private};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const EXAMPLES: &str = "\
Examples:
  shale run -- sqlite3 /mnt/shale/books.db
  shale run --report -- git -C /mnt/shale/repository gc
  shale run --report=calls.json -- make -j2
  shale run --names=off -- ./deliver /mnt/shale/mail
  shale run --bypass git --bypass ./tool -- make

The exit code is the command's; 126: it cannot be run, 127: it is not found. A command that is static, or \
whose calls do not go through libc, is served by the mount as without this, and so are users other than the \
volume's owner, root and those whom it trusts (shale mkfs --trust). Settings by the environment: \
SHALE_PRELOAD=FILE is the library, SHALE_LOG_BYTES=64M the size of each process's update log, up to the \
log_bytes of its volume, SHALE_WARM_US=N how many microseconds a file's calls take on the mount before it is \
served in the process (5000; four times that before a process becomes a client, since that takes some \
milliseconds), SHALE_WARM_CALLS=N instead of it how many calls a process leaves to the mount before all its \
files are served (0: none), SHALE_DURABILITY=buffered is --durability buffered, SHALE_NAMES=off is --names=off, SHALE_PROTECT=off is --protect off, SHALE_BYPASS=PROGRAM:PROGRAM is --bypass of each.";

/// File name of the library.
const LIBRARY: &str = "libshale_preload.so";
/// Variable with the programs in which nothing is served.
const BYPASS: &str = "SHALE_BYPASS";
/// Variable with the durability policy of the command.
const DURABILITY: &str = "SHALE_DURABILITY";
/// Variable that says which names are served in the process.
const NAMES: &str = "SHALE_NAMES";
/// Exit codes of a command that did not run, as shells and `env` have them.
const NOT_RUNNABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Say afterwards, for each call, how often it was served in the process and how often
    /// and why it was left to the kernel; with FILE, add a line of JSON for each process to it
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    report: Option<Option<PathBuf>>,
    /// When the command's writes are durable: with strict when the call returns, with buffered at fsync or within a minute by
    /// itself, with ordered in their order within a second, also after fsync [default: as the volume]
    #[arg(long, value_name = "POLICY", value_parser = ["strict", "buffered", "ordered"])]
    durability: Option<String>,
    /// Which names are served in the process, so that files are opened, made, listed, asked about, renamed and removed without the
    /// kernel (root only): with auto those of directories in which it makes so many that it pays, with N all of them,
    /// once it has made N calls about paths of a volume, with off none [default: auto]
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "auto", value_parser = names)]
    names: Option<String>,
    /// Whether stray stores of the command are kept off what the library writes, by
    /// protection keys where the processor has them; costs each call some 24 ns [default: on]
    #[arg(long, value_name = "WHETHER", value_parser = ["on", "off"])]
    protect: Option<String>,
    /// Serve nothing in this program, however it is started: it runs on the mount, and what it starts
    /// in turn is served. The name of its file, of a link in PATH to it (python3), or a path; may be given
    /// several times [default: none]
    #[arg(long, value_name = "PROGRAM")]
    bypass: Vec<PathBuf>,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Refuses settings of the environment that the library could only ignore.
fn check_settings() -> Result<()> {
    if let Ok(text) = std::env::var("SHALE_LOG_BYTES") {
        size::parse(&text).map_err(|why| Failure::usage(format!("SHALE_LOG_BYTES: {why}")))?;
    }
    if let Ok(text) = std::env::var(DURABILITY) {
        let policy = text.parse::<shale_format::Durability>();
        policy.map_err(|why| Failure::usage(format!("{DURABILITY}: {why}")))?;
    }
    if let Ok(text) = std::env::var(NAMES) {
        names(&text).map_err(|why| Failure::usage(format!("{NAMES}: {why}")))?;
    }
    Ok(())
}

/// Which names are to be served, as the library reads it.
fn names(text: &str) -> std::result::Result<String, String> {
    match text {
        "auto" | "off" => Ok(text.to_owned()),
        number if number.parse::<u32>().is_ok() => Ok(text.to_owned()),
        _ => Err("write auto, off or a number of calls".to_owned()),
    }
}

/// Runs the command; returns only if that is not possible.
pub fn run(args: &Args) -> Result<()> {
    let library = library()?;
    check_settings()?;
    if !mount_table::all()?.iter().any(|m| m.is_shale()) {
        eprintln!("shale run: no shale volume is mounted: nothing will be served in the process");
    }
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    command.env(
        "LD_PRELOAD",
        preload(&library, std::env::var_os("LD_PRELOAD")),
    );
    if let Some(policy) = &args.durability {
        command.env(DURABILITY, policy);
    }
    if let Some(which) = &args.names {
        command.env(NAMES, which);
    }
    if let Some(whether) = &args.protect {
        command.env("SHALE_PROTECT", whether);
    }
    if !args.bypass.is_empty() {
        let more = std::env::var_os(BYPASS);
        command.env(BYPASS, bypass_list(&args.bypass, more)?);
    }
    match &args.report {
        None => {}
        Some(Some(file)) => {
            let file = std::path::absolute(file).map_err(Failure::because(file.display()))?;
            command.env("SHALE_REPORT", file);
        }
        Some(None) => return reported(command),
    }
    let error = command.exec();
    not_run(&command, &error)
}

/// Runs the command as a child and prints what its processes report.
fn reported(mut command: Command) -> Result<()> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot keep a report: {e}"));
    // A name that nobody can take before; made by nobody else, and followed nowhere.
    let number = supervise::random()?;
    let place = std::env::temp_dir().join(format!("shale-report-{number:016x}"));
    let mut file = private::create_new(&place).map_err(failed)?;
    let done = command.env("SHALE_REPORT", &place).status();
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    // It is not needed any more, whatever has become of it.
    let _ = fs::remove_file(&place);
    let status = match done {
        Ok(status) => status,
        Err(error) => not_run(&command, &error),
    };
    read.map_err(failed)?;
    eprint!("{}", printable::lines(&Summary::of(&text).text()));
    let killed = status.signal().map(|signal| 128 + signal);
    exit(status.code().or(killed).unwrap_or(1));
}

fn not_run(command: &Command, error: &std::io::Error) -> ! {
    let name = Path::new(command.get_program()).to_string_lossy();
    eprintln!("shale run: {}: {error}", printable::name(&name));
    exit(match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    })
}

/// The library: named by the environment, or beside this program, or installed with it.
fn library() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("SHALE_PRELOAD").map(PathBuf::from) {
        return match named.is_file() {
            true => Ok(named),
            false => Err(Failure::new(format!(
                "SHALE_PRELOAD={}: there is no such file",
                named.display()
            ))),
        };
    }
    let own = std::env::current_exe().map_err(Failure::because("cannot find this program"))?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = ["", "../lib", "../lib/shale", "deps"].map(|d| beside.join(d).join(LIBRARY));
    let found = places.iter().find(|p| p.is_file()).cloned();
    found.ok_or_else(|| {
        let text = format!(
            "{}: there is no such file, nor in ../lib",
            places[0].display()
        );
        Failure::new(text).advise("cargo build --release -p shale-preload makes it")
    })
}

/// The variable that loads the library before what it loads already.
fn preload(library: &Path, others: Option<OsString>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|o| !o.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    all
}

/// The variable for programs in which nothing is served: these, and those that it has already. A path is that of
/// the file itself, as the kernel names it.
fn bypass_list(programs: &[PathBuf], more: Option<OsString>) -> Result<OsString> {
    let mut list = Vec::new();
    for program in programs {
        let shown = program.display();
        let whole = match program.components().count() {
            1 => program.clone(),
            _ => program
                .canonicalize()
                .map_err(Failure::because(format!("--bypass {shown}")))?,
        };
        let bytes = whole.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.contains(&b':') {
            let why = format!("--bypass '{shown}': a name cannot be empty or have a colon");
            return Err(Failure::usage(why));
        }
        list.push(whole.into_os_string());
        list.extend(behind(program));
    }
    list.extend(more);
    Ok(list.join(OsStr::new(":")))
}

/// The program that a name is found as first, where that is a symbolic link to a file of another name, as `sh` and `python3` are: the
/// library sees only which file runs.
fn behind(name: &Path) -> Option<OsString> {
    if name.components().count() != 1 {
        return None;
    }
    let directories = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&directories).map(|dir| dir.join(name));
    let file = found.find_map(|path| path.is_file().then(|| path.canonicalize()))?;
    let file = file.ok()?.into_os_string();
    let is_other = Path::new(&file).file_name() != Some(name.as_os_str());
    (is_other && !file.as_bytes().contains(&b':')).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bypassed_programs_are_names_and_paths_of_files() {
        let list = |programs: &[&str], more: Option<&str>| {
            let programs: Vec<PathBuf> = programs.iter().map(PathBuf::from).collect();
            bypass_list(&programs, more.map(OsString::from))
        };
        assert_eq!(
            list(&["none-such", "/proc/."], None).unwrap(),
            "none-such:/proc"
        );
        let more = list(&["none-such"], Some("/a/b:c")).unwrap();
        assert_eq!(more, "none-such:/a/b:c");
        // It is the shell of this system, of whatever name.
        let shell = Path::new("/bin/sh").canonicalize().unwrap();
        let names = list(&["sh"], None).unwrap();
        let names: Vec<_> = std::env::split_paths(&names).collect();
        assert_eq!(names[0], Path::new("sh"));
        assert!(shell.file_name() == Some(OsStr::new("sh")) || names[1..] == [shell]);
        for wrong in ["a:b", "", "/no/such/program"] {
            assert!(list(&[wrong], None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_libraries_stay_loaded() {
        let library = Path::new("/a/b.so");
        assert_eq!(preload(library, None), "/a/b.so");
        assert_eq!(preload(library, Some("".into())), "/a/b.so");
        assert_eq!(preload(library, Some("c.so".into())), "/a/b.so:c.so");
    }
}
