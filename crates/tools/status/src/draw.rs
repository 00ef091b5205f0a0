//! How `top` looks: tiers, what digests and migration do, clients, errors, keys.

use crate::fields::{bytes, list, number, word};
use crate::screen::{Column, Row as Client, Screen};
use crate::staging;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{LineGauge, Paragraph, Row, Table};
use serde_json::Value;
use shale_sys::size;

/// Most errors that are shown.
const ERRORS_MAX: usize = 6;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const RED: Style = Style::new().fg(Color::Red);
/// Columns of a tier's name and its gauge.
const GAUGE_COLUMNS: u16 = 38;

/// A tier as it is drawn.
struct Tier {
    name: String,
    used: u64,
    total: u64,
    words: String,
}

fn tiers(status: &Value) -> Vec<Tier> {
    let space = &status["space"];
    let kept = number(space, "reserve_bytes") + number(space, "credit_bytes");
    let mut tiers = vec![Tier {
        name: staging::first_tier(status).to_owned(),
        used: number(space, "used_bytes") + number(space, "granted_bytes"),
        total: number(space, "total_bytes"),
        words: format!(
            "{} live of {}, {} dirty, {} kept, {} free",
            bytes(space, "used_bytes"),
            bytes(space, "total_bytes"),
            bytes(space, "dirty_bytes"),
            size::show(kept),
            bytes(space, "available_bytes"),
        ),
    }];
    for tier in list(status, "tiers") {
        tiers.push(Tier {
            name: word(tier, "tier").to_owned(),
            used: number(tier, "live_bytes") + number(tier, "dead_bytes"),
            total: number(tier, "total_bytes"),
            words: format!(
                "{} live of {}, {} dead, {} kept, {} free",
                bytes(tier, "live_bytes"),
                bytes(tier, "total_bytes"),
                bytes(tier, "dead_bytes"),
                bytes(tier, "reserved_bytes"),
                bytes(tier, "writable_bytes"),
            ),
        });
    }
    tiers
}

fn activity(status: &Value) -> Vec<String> {
    let (digest, rates) = (&status["digest"], &status["rates"]);
    let mut lines = vec![format!(
        "digest     {}/s of log, {}/s of data; {} records, {} of log, {} of data, {} refused",
        bytes(rates, "logged_bytes_per_s"),
        bytes(rates, "digested_bytes_per_s"),
        number(digest, "records"),
        bytes(digest, "bytes_logged"),
        bytes(digest, "bytes_digested"),
        number(digest, "refused"),
    )];
    let m = &status["migration"];
    if m.is_object() {
        let pace = match (m["paused"].as_bool(), number(m, "limit_bytes_per_s")) {
            (Some(true), _) => ", paused".to_owned(),
            (_, 0) => String::new(),
            (_, limit) => format!(", at most {}/s", size::show(limit)),
        };
        lines.push(format!(
            "migration  {}/s{pace}; {} down, {} up, {} cleaned in {} batches",
            bytes(m, "recent_bytes_per_s"),
            bytes(m, "down_bytes"),
            bytes(m, "up_bytes"),
            bytes(m, "cleaned_bytes"),
            number(m, "batches"),
        ));
    }
    for (name, words) in [
        ("staging", staging::staged(status)),
        ("", staging::commits(status)),
        ("", staging::commit_histogram(status)),
        ("", staging::checkpoints(status)),
        ("buffer", staging::buffer(status)),
    ] {
        lines.extend(words.map(|words| format!("{name:<10} {words}")));
    }
    lines
}

fn title(screen: &Screen) -> String {
    let s = &screen.status;
    let up = number(s, "uptime_s");
    let state = match (screen.paused, screen.silent) {
        (true, _) => "; paused",
        (_, true) => "; the daemon does not answer",
        _ => "",
    };
    format!(
        "{}: volume '{}', {}, up {}:{:02}:{:02}, daemon {}, {}{state}",
        screen.place,
        word(s, "name"),
        word(s, "durability"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        number(s, "daemon_pid"),
        crate::fields::count(number(s, "client_count"), "client"),
    )
}

const KEYS: &str = "q end  p pause  left/right sort  r reverse  up/down scroll";

/// Errors that are shown, each on a line.
fn errors(screen: &Screen) -> Vec<String> {
    let mut errors = screen.errors();
    let more = errors.len().saturating_sub(ERRORS_MAX);
    errors.truncate(ERRORS_MAX);
    if more > 0 {
        errors.push(format!("and {more} more: shale status"));
    }
    errors
}

/// Heights of title, tiers, activity, errors; clients get the rest.
fn heights(screen: &Screen) -> [u16; 4] {
    let lines = [
        1,
        tiers(&screen.status).len(),
        activity(&screen.status).len(),
        errors(screen).len(),
    ];
    lines.map(|n| n as u16)
}

/// Rows of the whole picture, without those of clients.
pub fn rows_besides_clients(screen: &Screen) -> u16 {
    // Empty lines after title, tiers, activity and clients; head of the table; keys.
    heights(screen).iter().sum::<u16>() + 6
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [title_rows, tier_rows, activity_rows, error_rows] = heights(screen);
    let parts = Layout::vertical([
        Constraint::Length(title_rows + 1),
        Constraint::Length(tier_rows + 1),
        Constraint::Length(activity_rows + 1),
        Constraint::Min(1),
        Constraint::Length(error_rows),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(Paragraph::new(title(screen)).style(BOLD), parts[0]);
    draw_tiers(frame, parts[1], &tiers(&screen.status));
    let lines: Vec<Line<'_>> = activity(&screen.status)
        .into_iter()
        .map(Line::from)
        .collect();
    frame.render_widget(Paragraph::new(lines), parts[2]);
    draw_clients(frame, parts[3], screen);
    let lines: Vec<Line<'_>> = errors(screen).into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).style(RED), parts[4]);
    frame.render_widget(Paragraph::new(KEYS), parts[5]);
}

fn draw_tiers(frame: &mut Frame<'_>, area: Rect, tiers: &[Tier]) {
    let lines = Layout::vertical(vec![Constraint::Length(1); tiers.len()]).split(area);
    for (tier, line) in tiers.iter().zip(lines.iter()) {
        let parts = Layout::horizontal([Constraint::Length(GAUGE_COLUMNS), Constraint::Min(0)])
            .split(*line);
        let part = tier.used as f64 / tier.total.max(1) as f64;
        let part = part.clamp(0.0, 1.0);
        let color = match part {
            p if p >= 0.95 => Color::Red,
            p if p >= 0.8 => Color::Yellow,
            _ => Color::Green,
        };
        let gauge = LineGauge::default()
            .ratio(part)
            .label(format!("{:<6} {:>3.0}%", tier.name, (part * 100.0).floor()))
            .filled_symbol("#")
            .unfilled_symbol("-")
            .filled_style(Style::new().fg(color));
        frame.render_widget(gauge, parts[0]);
        frame.render_widget(Paragraph::new(format!("  {}", tier.words)), parts[1]);
    }
}

fn cell(column: Column, client: &Client) -> String {
    let bytes = |n: usize| size::show(client.written[n]);
    let none = String::new;
    let lives = client.pid > 0;
    match column {
        Column::Pid if lives => client.pid.to_string(),
        Column::Name => client.name.clone(),
        Column::Kind => client.kind.clone(),
        Column::Log if lives => format!("{}%", client.fill),
        Column::Rate if lives => format!("{}/s", size::show(client.rate)),
        Column::Nvm => bytes(0),
        Column::Ssd => bytes(1),
        Column::Hdd => bytes(2),
        Column::Leases if lives => client.leases.to_string(),
        Column::Limit if client.limit > 0 => format!("{}/s", size::show(client.limit)),
        Column::Waited if client.limit > 0 => format!("{:.1}s", client.limited_ms as f64 / 1000.0),
        Column::State => client.state.clone(),
        _ => none(),
    }
}

fn width(column: Column) -> Constraint {
    Constraint::Length(match column {
        Column::Pid => 8,
        Column::Name => 16,
        Column::Kind => 7,
        Column::Log | Column::Leases => 7,
        Column::Waited => 8,
        Column::Rate | Column::Limit => 12,
        Column::Nvm | Column::Ssd | Column::Hdd => 9,
        Column::State => return Constraint::Min(8),
    })
}

fn draw_clients(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let order = if screen.descending { "v" } else { "^" };
    let names = Column::ALL.iter().enumerate().map(|(n, column)| {
        let name = format!("{column:?}").to_uppercase();
        if n == screen.sort { name + order } else { name }
    });
    let clients = screen.rows();
    let rows = clients.iter().skip(screen.first).map(|client| {
        let style = match client.state.as_str() {
            "" | "served" => Style::new(),
            _ => RED,
        };
        Row::new(Column::ALL.map(|column| cell(column, client))).style(style)
    });
    let table = Table::new(rows, Column::ALL.map(width))
        .header(Row::new(names).style(BOLD))
        .column_spacing(1);
    frame.render_widget(table, area);
}
