//! What one client wrote is what every other sees: through the kernel's caches, past them, after a kill.

mod history;
mod mount_and_library;
mod open_by_number;
mod past_pages;
mod restart;
mod sizes;
