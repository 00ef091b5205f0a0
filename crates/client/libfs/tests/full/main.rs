//! What was acknowledged on a full volume can always be digested: by a daemon that runs
//! and by one that recovers what a killed one left (DESIGN §16).

mod calls;
mod directories;
mod durable;
mod extents;
mod free;
mod inodes;
mod last_blocks;
mod load;
mod lost;
mod pieces;
mod place;
mod seeds;
mod targets;
