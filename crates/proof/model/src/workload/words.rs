//! Workloads: sequences of operations of the alphabet, or of a recorded program, as words that a
//! command can be given.

use super::alphabet::{act_at, alphabet};
use super::huge;
use super::programs::Program;
use super::tiered;
use crate::Act;
use crate::random::{Abilities, Acts};

/// One step of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A client does an item of the alphabet.
    Item {
        /// Which client, from 0.
        client: usize,
        /// Which item.
        item: usize,
    },
    /// All logs are digested, and freed space is given out again.
    Digest,
    /// Power fails in the step before; what could be left is recovered, and the run goes on
    /// with it ([`Workload::run`] only, like the following).
    Cut,
    /// The volume is unmounted and mounted again.
    Stop,
    /// A client dies between two calls, another one takes its place.
    Kill(usize),
    /// Everything moves out of NVM ([`Workload::tiers`] only); the first client does this item, and has
    /// its log digested, while a device is flushed.
    Migrate(Option<usize>),
}

/// A sequence of steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Workload {
    /// The steps.
    pub steps: Vec<Step>,
    /// Whole blocks go through the log, never directly to granted blocks.
    pub log_all: bool,
    /// Logs begin shortly before the end of their rings.
    pub wraps: bool,
    /// The second client is a thread of the first, at the same time, in [`TWIN`].
    pub threads: bool,
    /// Logs have gone around once: the records of this workload's last turn are still there.
    pub turned: bool,
    /// A volume is made over the one that is there; no steps.
    pub mkfs: bool,
    /// The first client is a mount, whose operations are requests; it survives its daemon.
    pub requests: bool,
    /// All clients run at the same time, on one tree.
    pub at_once: bool,
    /// Items are operations of this program, not of the alphabet.
    pub program: Option<Program>,
    /// A long run with faults; items from [`RANDOM_FROM`] on are random operations.
    pub run: bool,
    /// A run on a volume with lower tiers; items from [`RANDOM_FROM`] on are those of
    /// [`super::tiered`].
    pub tiers: bool,
    /// Items from [`RANDOM_FROM`] on are those of [`super::huge`].
    pub huge: bool,
}

/// Item `n` of a run, from this one on, is the operation that the number `n` makes.
pub const RANDOM_FROM: usize = 1_000;
/// Number behind the last one.
pub const RANDOM_END: usize = 1 << 24;

const LOG_ALL: &str = "L";
const WRAPS: &str = "W";
const THREADS: &str = "T";
const TURNED: &str = "O";
const MKFS: &str = "M";
const REQUESTS: &str = "R";
const AT_ONCE: &str = "C";
const PROGRAM: &str = "P=";
const RUN: &str = "N";
const TIERS: &str = "S";
const HUGE: &str = "H";
const MIGRATE: &str = "V";
const MEANWHILE: &str = "v";
const DIGEST: &str = "D";
const CUT: &str = "K";
const STOP: &str = "U";
const KILL: &str = "X";

impl Workload {
    /// These steps, nothing special.
    pub fn new(steps: Vec<Step>) -> Self {
        Workload {
            steps,
            ..Workload::default()
        }
    }

    /// Other steps, the rest the same.
    pub fn with(&self, steps: Vec<Step>) -> Self {
        Workload { steps, ..*self }
    }

    /// Item `item` as step number `step`.
    pub fn act(&self, item: usize, step: usize) -> Act {
        match self.program {
            Some(program) => program.acts()[item].clone(),
            None if item >= RANDOM_FROM && self.tiers => tiered::act(item),
            None if item >= RANDOM_FROM && self.huge => huge::act(item),
            None if item >= RANDOM_FROM => {
                Acts::new(item as u64, Abilities { ranges: true }).next_act()
            }
            None => act_at(item, step),
        }
    }

    /// The program whose operations these are, none left out from the first on.
    pub fn whole_program(&self) -> Option<Program> {
        let items = self.steps.iter().filter_map(|step| match step {
            Step::Item { item, .. } => Some(*item),
            _ => None,
        });
        let whole = items.enumerate().all(|(n, item)| n == item);
        self.program.filter(|_| whole)
    }

    /// How many clients it needs.
    pub fn clients(&self) -> usize {
        let client = |step: &Step| match step {
            Step::Item { client, .. } | Step::Kill(client) => client + 1,
            _ => 1,
        };
        self.steps.iter().map(client).max().unwrap_or(1)
    }
}

/// Words: `12` item 12 of the first client, `b12` of the second, `D` a digest; in front `L`,
/// `W`, `T`, `O`, `R` and `C` for [`Workload::log_all`], [`Workload::wraps`], [`Workload::threads`],
/// [`Workload::turned`], [`Workload::requests`] and [`Workload::at_once`]; `M` alone for
/// [`Workload::mkfs`], `N` in front for [`Workload::run`] (`K` [`Step::Cut`], `U` [`Step::Stop`], `Xb`
/// [`Step::Kill`]), `H` for [`Workload::huge`], `S` for [`Workload::tiers`] (as `N`, `V` and `v12` [`Step::Migrate`]), and `P=` with the name of a program ([`Workload::program`]).
impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flags = [
            (self.log_all, LOG_ALL),
            (self.wraps, WRAPS),
            (self.threads, THREADS),
            (self.turned, TURNED),
            (self.mkfs, MKFS),
            (self.requests, REQUESTS),
            (self.at_once, AT_ONCE),
            (self.run && !self.tiers, RUN),
            (self.tiers, TIERS),
            (self.huge, HUGE),
        ];
        let flags = flags.into_iter().filter(|flag| flag.0);
        let mut words: Vec<String> = flags.map(|flag| flag.1.to_owned()).collect();
        words.extend(self.program.map(|p| format!("{PROGRAM}{}", p.name())));
        words.extend(self.steps.iter().map(|step| match step {
            Step::Digest => DIGEST.to_owned(),
            Step::Cut => CUT.to_owned(),
            Step::Stop => STOP.to_owned(),
            Step::Migrate(None) => MIGRATE.to_owned(),
            Step::Migrate(Some(item)) => format!("{MEANWHILE}{item}"),
            Step::Kill(client) => format!("{KILL}{}", char::from(b'a' + *client as u8)),
            Step::Item { client: 0, item } => item.to_string(),
            Step::Item { client, item } => format!("{}{item}", char::from(b'a' + *client as u8)),
        }));
        f.write_str(&words.join(" "))
    }
}

impl std::str::FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut items = alphabet().len();
        let mut workload = Workload::default();
        for word in text.split_whitespace() {
            if let Some(name) = word.strip_prefix(PROGRAM) {
                let found = Program::named(name);
                let program = found.ok_or_else(|| format!("'{name}' is no program"))?;
                items = program.acts().len();
                workload.program = Some(program);
                continue;
            }
            match word {
                LOG_ALL => workload.log_all = true,
                WRAPS => workload.wraps = true,
                THREADS => workload.threads = true,
                TURNED => workload.turned = true,
                MKFS => workload.mkfs = true,
                REQUESTS => workload.requests = true,
                AT_ONCE => workload.at_once = true,
                RUN => (workload.run, items) = (true, RANDOM_END),
                HUGE => (workload.huge, items) = (true, RANDOM_END),
                TIERS => {
                    (workload.run, workload.tiers) = (true, true);
                    items = RANDOM_END;
                }
                MIGRATE if workload.tiers => workload.steps.push(Step::Migrate(None)),
                DIGEST => workload.steps.push(Step::Digest),
                CUT if workload.run => workload.steps.push(Step::Cut),
                STOP if workload.run => workload.steps.push(Step::Stop),
                "Xa" | "Xb" | "Xc" | "Xd" if workload.run => {
                    let client = usize::from(word.as_bytes()[1] - b'a');
                    workload.steps.push(Step::Kill(client));
                }
                _ => match word.strip_prefix(MEANWHILE).filter(|_| workload.tiers) {
                    Some(number) => {
                        let Step::Item { item, .. } = item_of(number, items)? else {
                            continue;
                        };
                        workload.steps.push(Step::Migrate(Some(item)));
                    }
                    None => workload.steps.push(item_of(word, items)?),
                },
            }
        }
        Ok(workload)
    }
}

fn item_of(word: &str, items: usize) -> Result<Step, String> {
    let (client, number) = match word.as_bytes()[0] {
        letter @ b'a'..=b'd' => (usize::from(letter - b'a'), &word[1..]),
        _ => (0, word),
    };
    match number.parse() {
        Ok(item) if item < items && !(alphabet().len()..RANDOM_FROM).contains(&item) => {
            Ok(Step::Item { client, item })
        }
        _ => Err(format!(
            "'{word}' is no step: a number below {items}, b and such a number, D; or L, W, T, O, R, C, P=PROGRAM in front"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_words() {
        let text = "L W O R C 3 D b17 D";
        let workload: Workload = text.parse().unwrap();
        assert_eq!(
            (workload.to_string().as_str(), workload.clients()),
            (text, 2)
        );
        let text = "N 3 D b1017 K U Xc";
        let workload: Workload = text.parse().unwrap();
        assert_eq!(
            (workload.to_string().as_str(), workload.clients()),
            (text, 3)
        );
        let text = "L H 1017 D 3";
        let workload: Workload = text.parse().unwrap();
        assert_eq!(workload.to_string(), text);
        let text = "S 3 D 1017 V v1018 v5 K U";
        let workload: Workload = text.parse().unwrap();
        assert_eq!(workload.to_string(), text);
        assert!("V".parse::<Workload>().is_err() && "N v3".parse::<Workload>().is_err());
        assert!("1017".parse::<Workload>().is_err() && "N 999".parse::<Workload>().is_err());
        assert!("3 K".parse::<Workload>().is_err());
        assert!("999".parse::<Workload>().is_err() && "x".parse::<Workload>().is_err());
    }
}
