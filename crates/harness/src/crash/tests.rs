//! The whole way: workloads, all cuts, recovery, model.

use std::sync::Arc;

use super::base::Base;
use super::explore::{Depth, Explorer, Known};

#[test]
fn one_operation() {
    let dir = std::path::Path::new("/dev/shm");
    let base = Base::make(dir).unwrap();
    let known = Arc::new(Known::default());
    let mut explorer = Explorer::new(dir, base, Depth::default(), known.clone()).unwrap();
    let begin = std::time::Instant::now();
    for word in std::env::var("W").unwrap_or("0,3 D,60".into()).split(',') {
        let found = explorer
            .explore(&word.parse().unwrap(), 1, &|| false)
            .unwrap();
        eprintln!("{word}: {found:#?}");
    }
    eprintln!("{:?} {:#?}", begin.elapsed(), known.counts);
}
