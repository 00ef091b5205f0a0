//! Tests of digest: by hand, against a model, refused records, crashes in between.

mod acls;
mod content;
mod direct_placement;
mod limits;
mod model;
mod names;
mod random;
mod refuse;
mod world;
