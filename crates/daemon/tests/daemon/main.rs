//! A daemon with clients that append by hand.

mod clients;
mod full;
mod mapped;
mod served;
