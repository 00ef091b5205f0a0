//! Steps that several attacks have in common.

use super::Scene;
use super::attacker::*;
use shale_format::Ino;
use shale_proto::{LeaseMode, Reply};

/// Appends a record, under a lease on what it names, and has it digested.
pub fn one(scene: &Scene<'_>, leases: &[u64], raw: Raw) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    for &ino in leases {
        a.take(ino);
    }
    a.append(raw);
    let reply = a.digest();
    (a, reply)
}

/// A world-writable file of root under a name that is the attack's; with its root client.
pub fn of_root(scene: &Scene<'_>, name: &str, mode: u32) -> (Attacker, u64) {
    let mut root = Attacker::new(&scene.stage.daemon, &scene.stage.place, 0);
    root.take(1);
    let ino = root.number();
    root.append(create_as(
        1,
        ino,
        0o100_000 | mode,
        (0, 0),
        scene.name(name).as_bytes(),
        b"",
    ));
    root.append(write(ino, 0, b"root's"));
    assert!(matches!(root.digest(), Reply::Digested { .. }));
    (root, ino)
}

/// Root changes a file of its own, of which the attacker has a lease since before if it is `opened`; then the attacker
/// takes it and writes `wrote`.
pub fn write_after(
    scene: &Scene<'_>,
    (mut root, ino): (Attacker, u64),
    change: Raw,
    opened: bool,
) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    if opened {
        a.lease(Ino(ino), LeaseMode::Shared);
    }
    root.take(ino);
    root.append(change);
    assert!(matches!(root.digest(), Reply::Digested { .. }));
    a.take(ino);
    a.append(write(ino, 0, b"wrote"));
    let reply = a.digest();
    (a, reply)
}
