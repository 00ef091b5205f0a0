//! The processes of a mount, and those that use it: killed, stopped, in the way.

mod in_use;
mod killed_notifier;
mod lasting;
mod stopped;
mod supervision;
mod termination;
