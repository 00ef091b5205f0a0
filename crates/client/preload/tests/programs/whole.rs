//! Programs that are killed in the midst of write calls above 1 MiB.

use crate::mount::Mounted;
use crate::tools::{Run, compiled};

/// Bytes of a call.
const CALL_BYTES: usize = 8 << 20;

#[test]
fn a_kill_leaves_all_or_nothing_of_a_large_write() {
    let Some(m) = Mounted::new() else { return };
    let program = compiled("whole");
    for how in ["plain", "odd", "append", "vector"] {
        let run = Run::of(&m, &program).args([how]).arg(m.path().join(how));
        let run = run.arg(CALL_BYTES.to_string()).env("SHALE_WARM_CALLS", "0");
        assert_eq!(run.output(), "");
    }
}
