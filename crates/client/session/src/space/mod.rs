//! What a client was granted of the volume: bytes, blocks and inode numbers; and what each kind of change may add at most.
//!
//! [`granted_space::GrantedSpace`] and [`grants::InodeNumbers`] own what is at hand.

pub mod granted_space;
pub mod grants;
pub mod reservation;
