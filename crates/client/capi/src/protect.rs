//! The program's stray stores do not reach what LibFS writes: log, control page and granted
//! segments are open to a thread only while it is inside a function of the header.
//!
//! The key is made when the process attaches first, unless `SHALE_PROTECT=off` is in its
//! environment. Threads that exist then have it closed, and open it in calls of their own.

use shale_libfs::SessionMaps;
use shale_nvm::MapOptions;
use shale_sys::{LibraryKey, ProtectionKey};
use std::sync::Once;

static KEY: LibraryKey = LibraryKey::new();
static MADE: Once = Once::new();

/// A thread inside the library; as it was before on drop.
pub(crate) struct Inside {
    was_open: bool,
}

impl Inside {
    /// Comes in.
    pub(crate) fn enter() -> Self {
        let was_open = KEY.get().is_some_and(ProtectionKey::is_open);
        if let Some(key) = KEY.get() {
            key.open();
        }
        Self { was_open }
    }

    /// Comes in to attach: from here on what is mapped as [`Inside::maps`] says is protected.
    pub(crate) fn enter_to_attach() -> Self {
        MADE.call_once(|| KEY.make());
        Self::enter()
    }

    /// How what LibFS writes is mapped.
    pub(crate) fn maps(&self) -> SessionMaps {
        let protected = || MapOptions::new().protect(KEY.get());
        SessionMaps {
            nvm: protected(),
            log: protected(),
            buffer: protected(),
            client_page: protected(),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(key) = KEY.get().filter(|_| !self.was_open) {
            key.close();
        }
    }
}
