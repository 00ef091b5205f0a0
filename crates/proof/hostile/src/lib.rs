//! Hostile clients: programs that speak the protocol and write their logs by hand.
//!
//! Each case alone, then each with each. It passes if the daemon lives and answers, an honest
//! client's concurrent work is as it wrote it, nothing outside the attacker's rights has
//! changed, the volume is whole (also by way of recovery), and the first bad record stops its
//! log and is named in the answer and in `status`.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`attacker`] | a client that lies where it can |
//! | [`stage`] | a volume with things of several users, an honest client, what must hold |
//! | [`campaign`] | all cases, alone and in pairs, within a time |
//! | `steps` | what several attacks do |
//! | [`framing`], [`races`], [`authority`], [`tree`], [`blocks`], [`denial`], [`transport`] | the cases |
//! | [`buffered`] | buffered clients that lie about what they have copied to NVM |
//! | [`left`] | logs that hostile clients left when the daemon was killed |
//! | [`fuzz`] | logs and messages that are spoiled by seed |
#![forbid(unsafe_code)]

mod attacker;
mod authority;
mod blocks;
mod buffered;
pub mod campaign;
mod denial;
mod framing;
#[cfg(test)]
mod fuzz;
mod left;
mod lists;
mod races;
// Also what tests of the daemon stand on.
#[path = "../../../server/daemon/tests/daemon/served.rs"]
#[allow(dead_code, reason = "each program uses a part of it")]
#[allow(missing_docs, reason = "as in tests")]
pub mod served;
mod stage;
mod steps;
mod transport;
mod tree;

use attacker::Attacker;
use shale_proto::Reply;
use stage::Stage;

/// One attack on a stage. `tag` makes its names its own.
struct Scene<'s> {
    stage: &'s Stage,
    tag: String,
    /// Nobody else attacks: what the attack leaves can be looked at.
    alone: bool,
}

impl Scene<'_> {
    /// A name that this attack alone uses.
    fn name(&self, name: &str) -> String {
        format!("m-{}-{name}", self.tag)
    }

    fn attacker(&self) -> Attacker {
        self.stage.attacker()
    }
}

/// What becomes of an attack.
enum Expect {
    /// Its log is stopped, for a reason that has these words.
    Refused(&'static str),
    /// It does no harm, or what it does it may do.
    Harmless,
    /// One or the other.
    Either,
}

/// What an attacker does; gives it with what the daemon said at last.
type Strike = fn(&Scene<'_>) -> (Attacker, Reply);

/// An attack.
struct Case {
    name: &'static str,
    strike: Strike,
    expect: Expect,
}

const fn case(name: &'static str, strike: Strike, expect: Expect) -> Case {
    Case {
        name,
        strike,
        expect,
    }
}

const fn refused(name: &'static str, strike: Strike, why: &'static str) -> Case {
    case(name, strike, Expect::Refused(why))
}

const fn harmless(name: &'static str, strike: Strike) -> Case {
    case(name, strike, Expect::Harmless)
}

const fn either(name: &'static str, strike: Strike) -> Case {
    case(name, strike, Expect::Either)
}

impl Case {
    /// Strikes where nobody else does. Panics if something is not as it has to be.
    fn alone(&self, stage: &Stage, n: usize) {
        let scene = Scene {
            stage,
            tag: n.to_string(),
            alone: true,
        };
        let (attacker, reply) = (self.strike)(&scene);
        match (&self.expect, &reply) {
            (Expect::Refused(words), Reply::Refused { why, .. }) => {
                assert!(why.contains(words), "{}: {why}", self.name);
                let detached = stage.daemon.status_values().detached_clients;
                let noted = detached.iter().any(|d| d.why.contains(words));
                assert!(noted, "{}: status does not tell it", self.name);
            }
            (Expect::Refused(_), other) => panic!("{}: {other:?}", self.name),
            (Expect::Harmless, Reply::Refused { why, .. }) => panic!("{}: {why}", self.name),
            (Expect::Harmless | Expect::Either, _) => {}
        }
        drop(attacker);
        stage.unchanged(self.name);
    }
}

/// All cases, by the heads of their list.
const TABLES: [(&str, &[Case]); 8] = [
    ("framing", framing::CASES),
    ("races", races::CASES),
    ("authority", authority::CASES),
    ("lists", lists::CASES),
    ("tree", tree::CASES),
    ("blocks", blocks::CASES),
    ("denial", denial::CASES),
    ("transport", transport::CASES),
];
