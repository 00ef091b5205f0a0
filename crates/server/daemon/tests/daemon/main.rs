//! A daemon with clients that append by hand.

mod below;
mod clients;
mod full;
mod leases;
mod mapped;
mod served;
