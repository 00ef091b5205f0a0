//! What the kernel keeps of names, attributes and pages, and when it has to let go of it.

pub(crate) mod fills;
pub(crate) mod late;
pub(crate) mod overtaken;
pub(crate) mod peek;
pub(crate) mod settle;
pub(crate) mod sizes;
pub(crate) mod told;
pub(crate) mod users;
