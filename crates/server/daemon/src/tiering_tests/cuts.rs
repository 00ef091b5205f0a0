//! What tests of power cuts in migration share.

use super::*;

/// Whatever a cut leaves of a workload is right.
#[cfg(not(feature = "mutants"))]
pub(super) fn loses_nothing(workload: fn(&mut Stage)) {
    let states = explore(workload).unwrap();
    println!("{states} states");
    assert!(states > 100);
}

/// A look at every cut finds each of these mistakes.
#[cfg(feature = "mutants")]
pub(super) fn are_found(names: &[&'static str], workload: fn(&mut Stage)) {
    for name in names {
        shale_sys::mutants::switch_on(Some(name));
        let found = std::panic::catch_unwind(|| explore(workload));
        shale_sys::mutants::switch_on(None);
        match found {
            Ok(Ok(states)) => panic!("{name}: not found in {states} states"),
            Ok(Err(why)) => println!("{name}: {}", why.lines().next().unwrap_or("")),
            Err(_) => println!("{name}: a panic"),
        }
    }
}

/// Both devices are emptied and taken out. Gives the volume.
#[cfg(not(feature = "mutants"))]
pub(super) fn devices_go(s: &Stage) -> Arc<Volume> {
    let volume = s.daemon.volume().clone();
    for (tier, n) in [(TierId::Ssd, 0), (TierId::Hdd, 1)] {
        let uuid = entry(n).uuid;
        let live = || volume.lower_device_infos(tier)[0].live;
        assert!(live() > 0);
        let done = volume.set_device_state(tier, &uuid, 1).unwrap();
        s.daemon.services().clients.publish(done.txid);
        let begun = std::time::Instant::now();
        while live() > 0 {
            s.daemon.services().tiering.empty_devices();
            assert!(begun.elapsed().as_secs() < 60, "{:?}", s.daemon.devices());
        }
        let done = volume.remove_device(tier, &uuid).unwrap();
        s.daemon.services().clients.publish(done.txid);
    }
    volume
}
