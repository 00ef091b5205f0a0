//! `shale top`: what a mount is doing, again and again.
//!
//! What is shown, and how it looks: `shale_status`.
//!
//! The daemon is asked by a thread of its own, so that keys are heard while it is started again.

use crate::control::ask;
use crate::failure::{Failure, Result};
use crate::mounts::state::StateDir;
use crate::terminal;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;
use shale_status::draw;
use shale_status::screen::Screen;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long keys are waited for before it is looked whether there is news.
const LOOK: Duration = Duration::from_millis(50);
/// Size of a picture that goes to no terminal, unless COLUMNS says another width.
const ONCE_COLUMNS: u16 = 120;
const ONCE_CLIENTS_MAX: usize = 1000;

const KEYS: &str = "\
Keys:
  q, Esc       end
  p            pause, go on
  left, right  sort clients by another column
  r            sort the other way round
  up, down     see further clients

Examples:
  shale top /mnt/shale
  shale top /mnt/shale --interval 0.2
  shale top /mnt/shale --once          one picture as text, for scripts";

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub struct Args {
    /// The mount point
    mountpoint: PathBuf,
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print one picture as text, of what happens in one interval, and end
    #[arg(long)]
    once: bool,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("'{text}' is not between 0.1 and 3600 seconds")),
    }
}

/// Shows what goes on.
pub fn run(args: &Args) -> Result<()> {
    let dir = ask::mount_at(&args.mountpoint)?;
    let place = dir.state.mountpoint.display().to_string();
    let mut screen = Screen::new(place, args.interval);
    screen.hear(Instant::now(), ask::status(&dir)?);
    if args.once {
        thread::sleep(args.interval);
        screen.hear(Instant::now(), ask::status(&dir)?);
        terminal::print(&picture(&screen)?);
        return Ok(());
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(
            Failure::usage("top needs a terminal").advise("--once prints one picture as text")
        );
    }
    let news = look(dir, args.interval);
    let mut terminal = ratatui::try_init().map_err(Failure::because("the terminal"))?;
    let shown = live(&mut terminal, &mut screen, &news);
    let restored = ratatui::try_restore().map_err(Failure::because("the terminal"));
    shown.and(restored)
}

/// Has the daemon asked at each interval.
fn look(dir: StateDir, interval: Duration) -> Receiver<Result<Value>> {
    let (sender, news) = sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let status = ask::status(&dir);
            let ended = status.is_err();
            if sender.send(status).is_err() || ended {
                return;
            }
        }
    });
    news
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    news: &Receiver<Result<Value>>,
) -> Result<()> {
    let failed = || Failure::because("the terminal");
    loop {
        terminal
            .draw(|frame| draw::draw(frame, screen))
            .map_err(failed())?;
        while !event::poll(LOOK).map_err(failed())? {
            match news.try_recv() {
                Ok(status) => {
                    screen.hear(Instant::now(), status?);
                    break;
                }
                Err(TryRecvError::Empty) if screen.grew_silent(Instant::now()) => break,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        while event::poll(Duration::ZERO).map_err(failed())? {
            // A new size needs no more than a new picture.
            if let Event::Key(key) = event::read().map_err(failed())?
                && press(screen, key).is_break()
            {
                return Ok(());
            }
        }
    }
}

fn press(screen: &mut Screen, key: KeyEvent) -> ControlFlow<()> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => return ControlFlow::Break(()),
        KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
        KeyCode::Char('p') => screen.pause(),
        KeyCode::Char('r') => screen.reverse(),
        KeyCode::Left => screen.sort_by(-1),
        KeyCode::Right => screen.sort_by(1),
        KeyCode::Up => screen.scroll(-1),
        KeyCode::Down => screen.scroll(1),
        _ => {}
    }
    ControlFlow::Continue(())
}

/// The screen as text, large enough for all clients.
fn picture(screen: &Screen) -> Result<String> {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let columns = columns.unwrap_or(ONCE_COLUMNS).clamp(40, 500);
    let clients = screen.rows().len().min(ONCE_CLIENTS_MAX) as u16;
    let rows = draw::rows_besides_clients(screen) + clients;
    let failed = || Failure::because("drawing");
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).map_err(failed())?;
    terminal
        .draw(|frame| draw::draw(frame, screen))
        .map_err(failed())?;
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(columns)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    pub fn status() -> Value {
        json!({
            "name": "v", "durability": "strict", "uptime_s": 3700, "daemon_pid": 7,
            "nvm_dir": "/n",
            "space": {"total_bytes": 1000 << 20, "used_bytes": 400 << 20, "granted_bytes": 50 << 20,
                "dirty_bytes": 3 << 20, "credit_bytes": 1 << 20, "reserve_bytes": 1 << 20,
                "available_bytes": 500 << 20},
            "tiers": [{"tier": "ssd", "total_bytes": 8u64 << 30, "live_bytes": 6u64 << 30,
                "dead_bytes": 1u64 << 30, "reserved_bytes": 64 << 20, "writable_bytes": 1u64 << 30,
                "devices": [{"errors": 2, "path": "/ssd", "failing": "worn out"}]}],
            "migration": {"paused": true, "down_bytes": 5 << 20, "up_bytes": 0,
                "cleaned_bytes": 1 << 20, "recent_bytes_per_s": 2 << 20, "batches": 3,
                "rate_bytes_per_s": 1, "limit_bytes_per_s": 0, "last_error": null},
            "rates": {"logged_bytes_per_s": 4 << 20, "digested_bytes_per_s": 3 << 20},
            "digest": {"records": 12, "bytes_logged": 9 << 20, "bytes_digested": 8 << 20,
                "refused": 1, "last_error": "record refused"},
            "bad_blocks": [], "recovery": {"problems": []}, "client_count": 2,
            "clients": [
                {"client": 1, "pid": 10, "name": "mount", "kind": "mount", "state": "served",
                    "log_bytes": 100, "log_used_bytes": 10, "leases": 5,
                    "limit_bytes_per_s": 0, "limited_ms": 0,
                    "written": {"log_bytes": 0, "stolen_bytes": 0, "nvm_bytes": 5 << 20,
                        "ssd_bytes": 0, "hdd_bytes": 0}},
                {"client": 2, "pid": 11, "name": "dd", "kind": "direct", "state": "served",
                    "log_bytes": 100, "log_used_bytes": 80, "leases": 1,
                    "limit_bytes_per_s": 1 << 20, "limited_ms": 1500,
                    "written": {"log_bytes": 0, "stolen_bytes": 0, "nvm_bytes": 1 << 20,
                        "ssd_bytes": 7 << 20, "hdd_bytes": 0}}],
            "written_by_others": {"nvm_bytes": 1 << 10, "ssd_bytes": 0, "hdd_bytes": 0},
            "detached_clients": [{"client": 9, "pid": 99, "why": "slept inside a call"}],
        })
    }

    fn shown(screen: &Screen) -> String {
        picture(screen).unwrap()
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("/m".to_owned(), Duration::from_secs(1));
        let begun = Instant::now();
        screen.hear(begun, status());
        let mut later = status();
        later["clients"][1]["written"]["log_bytes"] = (4 << 20).into();
        screen.hear(begun + Duration::from_secs(2), later);
        screen
    }

    #[test]
    fn the_picture_has_tiers_rates_clients_and_errors() {
        let text = shown(&screen());
        println!("{text}");
        for part in [
            "/m: volume 'v', strict, up 1:01:40",
            "nvm",
            "45%",
            "3 MiB dirty",
            "ssd",
            "87%",
            "1 GiB dead",
            "digest",
            "4 MiB/s of log",
            "paused",
            "2 MiB/s",
            "PID",
            "dd",
            "80%",
            "2 MiB/s",
            "7 MiB",
            "1 MiB/s",
            "others",
            "record refused",
            "/ssd: failing: worn out",
            "/ssd: 2 requests failed",
            "process 99 was cut off: slept inside a call",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn keys_sort_scroll_and_pause() {
        let mut screen = screen();
        let first = |s: &Screen| s.rows()[0].name.clone();
        assert_eq!(first(&screen), "dd", "the one that writes most comes first");
        let key = |screen: &mut Screen, code| press(screen, KeyEvent::from(code));
        assert!(key(&mut screen, KeyCode::Char('r')).is_continue());
        assert_eq!(first(&screen), "mount");
        assert!(key(&mut screen, KeyCode::Char('r')).is_continue());
        assert!(key(&mut screen, KeyCode::Right).is_continue());
        assert_eq!(first(&screen), "mount", "by bytes to NVM");
        for _ in 0..100 {
            assert!(key(&mut screen, KeyCode::Left).is_continue());
            assert!(key(&mut screen, KeyCode::Down).is_continue());
            assert!(!shown(&screen).is_empty());
        }
        assert!(shown(&screen).contains("PID^") || shown(&screen).contains("PIDv"));
        assert!(key(&mut screen, KeyCode::Char('p')).is_continue());
        let mut later = status();
        later["name"] = "other".into();
        screen.hear(Instant::now(), later);
        assert!(shown(&screen).contains("'v'") && shown(&screen).contains("paused"));
        assert!(key(&mut screen, KeyCode::Esc).is_break());
        assert!(key(&mut screen, KeyCode::Char('q')).is_break());
    }

    #[test]
    fn a_small_terminal_is_no_mistake() {
        let screen = screen();
        for (columns, rows) in [(1, 1), (10, 3), (40, 8), (200, 4)] {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| draw::draw(frame, &screen)).unwrap();
        }
    }

    #[test]
    fn intervals() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "4000", "x", "NaN"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
