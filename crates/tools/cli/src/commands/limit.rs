//! `shale limit`: how fast clients may write.
//!
//! What is set holds until the volume is unmounted: it is kept beside the state of the mount, so a
//! daemon that is started again knows it before its first client comes.

use crate::control::admin;
use crate::control::ask;
use crate::control::orders::Order;
use crate::failure::{Failure, Result};
use crate::process;
use crate::terminal::say;
use serde_json::Value;
use shale_daemon::{Limits, RATE_MIN, Whose};
use shale_status::fields::{list, number, word};
use shale_sys::size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Counted are the bytes of a client's log and the blocks granted to it for full blocks, so what it writes; \
reading is not limited. A client that is ahead waits before its next call, outside of everything that others \
could need. All programs on the mount are one client.

Examples:
  shale limit /mnt/shale                            what is set, and who waits
  shale limit /mnt/shale --rate 50M                 each client: 50 MiB a second
  shale limit /mnt/shale --client 4711 --rate 10M   one process under shale run
  shale limit /mnt/shale --client 4711 --rate 0     that one without a limit
  shale limit /mnt/shale --client 4711 --default    that one as all others
  shale limit /mnt/shale --mount --rate 100M        all programs of the mount";

/// Arguments of `limit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Bytes a second, at least 64K; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    rate: Option<u64>,
    /// Of this process only
    #[arg(long, value_name = "PID", conflicts_with = "mount", value_parser = clap::value_parser!(i32).range(1..))]
    client: Option<i32>,
    /// Of all FUSE clients together
    #[arg(long)]
    mount: bool,
    /// The process again has the limit of each client
    #[arg(long, requires = "client", conflicts_with = "rate")]
    default: bool,
    /// The limits as JSON
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    match size::parse(text)? {
        bytes @ 1..RATE_MIN => Err(format!(
            "{bytes} bytes a second are too few: at least {}, or 0 for no limit",
            size::show(RATE_MIN)
        )),
        bytes => Ok(bytes),
    }
}

/// Shows or sets limits.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let whose = match (args.client, args.mount) {
        (Some(pid), _) => Whose::Process(pid),
        (None, true) => Whose::Mount,
        (None, false) => Whose::Each,
    };
    if let Some(pid) = args
        .client
        .filter(|pid| !args.default && !process::exists(*pid))
    {
        let why = format!("process {pid}: there is none");
        return Err(Failure::new(why).advise("shale status shows the clients"));
    }
    if args.rate.is_some() || args.default {
        let rate = args.rate;
        admin::order::<Limits>(&dir, &Order::Limit { whose, rate })?;
    } else if args.client.is_some() || args.mount {
        return Err(Failure::usage("--rate says how fast").advise("shale limit --help"));
    }
    let status = ask::status(&dir)?;
    if args.json {
        say!("{:#}", status["limits"]);
        return Ok(());
    }
    for line in lines(&status) {
        say!("{line}");
    }
    Ok(())
}

/// A limit in words.
pub fn shown(rate: u64) -> String {
    match rate {
        0 => "no limit".to_owned(),
        rate => format!("{} a second", size::show(rate)),
    }
}

fn lines(status: &Value) -> Vec<String> {
    let limits = &status["limits"];
    let mut lines = vec![
        format!("each client: {}", shown(number(limits, "each"))),
        format!("the mount:   {}", shown(number(limits, "mount"))),
    ];
    for (pid, rate) in limits["process"].as_object().into_iter().flatten() {
        lines.push(format!(
            "process {pid}: {}",
            shown(rate.as_u64().unwrap_or(0))
        ));
    }
    for client in list(status, "clients") {
        let rate = number(client, "limit_bytes_per_s");
        if rate > 0 {
            lines.push(format!(
                "now: {} {} ({}): {}, has waited {:.1} s",
                word(client, "kind"),
                number(client, "pid"),
                word(client, "name"),
                shown(rate),
                number(client, "limited_ms") as f64 / 1000.0,
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_what_is_shown() {
        assert_eq!(rate("50M"), Ok(50 << 20));
        assert_eq!(rate("0"), Ok(0));
        assert!(rate("1K").unwrap_err().contains("64 KiB"));
        let status = serde_json::json!({
            "limits": {"each": 1 << 20, "mount": 0, "process": {"12": 0}},
            "clients": [{"kind": "direct", "pid": 13, "name": "dd", "limited_ms": 1500,
                "limit_bytes_per_s": 1 << 20}, {"kind": "direct", "pid": 12}],
        });
        assert_eq!(
            lines(&status).join("; "),
            "each client: 1 MiB a second; the mount:   no limit; process 12: no limit; \
             now: direct 13 (dd): 1 MiB a second, has waited 1.5 s"
        );
    }
}
