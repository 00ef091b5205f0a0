use super::*;
use crate::BenchError;

#[test]
fn a_quick_run_has_every_row_and_takes_everything_down() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = MicroOptions {
        dir: place.path().to_owned(),
        plots: Some(place.path().join("plots")),
        ..MicroOptions::quick()
    };
    let mut lines = 0;
    let report = run_with_progress(&options, |_| lines += 1).unwrap();
    assert_eq!(lines, 5 * 2 + 2);
    assert_eq!(report.rows.len(), lines * report.targets().len());
    for row in &report.rows {
        assert!(
            row.ops >= 1 && row.p50_ns <= row.p99_ns && row.p99_ns <= row.p999_ns,
            "{row:?}"
        );
        assert!(row.mean_ns >= 0.0 && row.flush_ns >= 0.0, "{row:?}");
    }
    let floor = report.row(Op::Append, 4_096, FLOOR).unwrap();
    let counts = floor.counts.unwrap();
    assert_eq!(
        (counts.fences, counts.nvm_bytes_before_digest),
        (1.0, 4_096.0)
    );
    assert_eq!(floor.ratio_to_floor, Some(1.0));
    let ours = report.row(Op::Append, 128, LIBFS).unwrap().counts.unwrap();
    assert!((1.0..1.1).contains(&ours.fences), "{ours:?}");
    assert!(ours.nvm_bytes_before_digest >= 128.0, "{ours:?}");
    assert!(
        ours.nvm_bytes_after_digest > ours.nvm_bytes_before_digest,
        "{ours:?}"
    );
    assert_eq!(MicroReport::from_json(&report.to_json()).unwrap(), report);
    let left: Vec<_> = std::fs::read_dir(place.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["plots"]);
}

#[test]
fn senseless_options_are_refused() {
    let wrong = |change: fn(&mut MicroOptions)| {
        let mut options = MicroOptions::quick();
        change(&mut options);
        matches!(run(&options), Err(BenchError::Option { .. }))
    };
    assert!(wrong(|o| o.sizes = vec![100]));
    assert!(wrong(|o| o.sizes = vec![0]));
    assert!(wrong(|o| o.working_set_bytes = 5_000));
    assert!(wrong(|o| o.round_ops_max = 0));
}
