//! Users beside the owner: those who may do something, and those who may not.

mod local_user;
mod own_mount;
mod trusted;
