//! Hostile clients: each case alone, then in pairs. The daemon lives and answers, an honest
//! client's concurrent work is as it wrote it, nothing outside the attacker's rights has
//! changed, the volume is whole, and the first bad record stops its log and is named.

#![allow(missing_docs, reason = "a test program has no users")]

#[path = "../daemon/served.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod served;

mod attacker;
mod authority;
mod blocks;
mod denial;
mod framing;
mod fuzz;
mod left;
mod pairs;
mod races;
mod stage;
mod transport;
mod tree;

use attacker::Attacker;
use shale_proto::Reply;
use stage::Stage;

/// One attack on a stage. `tag` makes its names its own.
pub struct Scene<'s> {
    pub stage: &'s Stage,
    pub tag: String,
    /// Nobody else attacks: what the attack leaves can be looked at.
    pub alone: bool,
}

impl Scene<'_> {
    /// A name that this attack alone uses.
    pub fn name(&self, name: &str) -> String {
        format!("m-{}-{name}", self.tag)
    }

    pub fn attacker(&self) -> Attacker {
        self.stage.attacker()
    }
}

/// What becomes of an attack.
pub enum Expect {
    /// Its log is stopped, for a reason that has these words.
    Refused(&'static str),
    /// It does no harm, or what it does it may do.
    Harmless,
    /// One or the other.
    Either,
}

pub struct Case {
    pub name: &'static str,
    /// Gives the attacker with what the daemon said at last.
    pub strike: fn(&Scene<'_>) -> (Attacker, Reply),
    pub expect: Expect,
}

pub(crate) const fn refused(
    name: &'static str,
    strike: fn(&Scene<'_>) -> (Attacker, Reply),
    why: &'static str,
) -> Case {
    Case {
        name,
        strike,
        expect: Expect::Refused(why),
    }
}

pub(crate) const fn harmless(
    name: &'static str,
    strike: fn(&Scene<'_>) -> (Attacker, Reply),
) -> Case {
    Case {
        name,
        strike,
        expect: Expect::Harmless,
    }
}

pub(crate) const fn either(
    name: &'static str,
    strike: fn(&Scene<'_>) -> (Attacker, Reply),
) -> Case {
    Case {
        name,
        strike,
        expect: Expect::Either,
    }
}

impl Case {
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
                let departed = stage.daemon.status_values().departed;
                let told = departed.iter().any(|d| d.why.contains(words));
                assert!(told, "{}: status does not tell it", self.name);
            }
            (Expect::Refused(_), other) => panic!("{}: {other:?}", self.name),
            (Expect::Harmless, Reply::Refused { why, .. }) => panic!("{}: {why}", self.name),
            (Expect::Harmless | Expect::Either, _) => {}
        }
        drop(attacker);
        stage.unchanged(self.name);
    }
}

/// Runs each case of a table alone, all on one stage.
fn each_alone(cases: &[Case]) {
    let stage = Stage::new();
    for (n, case) in cases.iter().enumerate() {
        case.alone(&stage, n);
    }
    stage.end();
}

/// All tables.
pub fn all() -> Vec<&'static Case> {
    [
        framing::CASES,
        races::CASES,
        authority::CASES,
        tree::CASES,
        blocks::CASES,
        denial::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn framing() {
    each_alone(framing::CASES);
}

#[test]
fn races() {
    each_alone(races::CASES);
}

#[test]
fn authority() {
    each_alone(authority::CASES);
}

#[test]
fn tree() {
    each_alone(tree::CASES);
}

#[test]
fn blocks() {
    each_alone(blocks::CASES);
}

#[test]
fn denial() {
    each_alone(denial::CASES);
}
