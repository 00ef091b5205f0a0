//! Notes every store, flush and fence in order, and keeps a shadow of each medium.
//!
//! Invariant: an access happens and is noted under one lock, so the order of events is
//! the order in which memory changed, over all media of a recording.
//! Lock order: this lock is taken last; nothing is called under it but the access itself.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cut::{Choice, MediaRules};
use crate::replay::Replay;
use shale_nvm::counters::Path;
use shale_nvm::{Event, MappedRegion, Recorder, Sink, StoreKind};
use shale_sys::threads::thread_pointer;

thread_local! {
    static OPERATION: Cell<u64> = const { Cell::new(0) };
}

/// Says which operation the calling thread works on from now; 0 is none.
pub fn set_operation(id: u64) {
    OPERATION.set(id);
}

/// The operation the calling thread works on.
pub fn operation() -> u64 {
    OPERATION.get()
}

/// What was done to a medium. Offsets are bytes from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Bytes were stored.
    Store {
        /// How.
        kind: StoreKind,
        /// Where.
        offset: usize,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// Write-back of lines was started.
    Flush {
        /// Start of the first line.
        offset: usize,
        /// How many lines.
        lines: usize,
    },
    /// The thread waited for its flushes and non-temporal stores, on all media.
    Fence,
}

/// One event of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Index of the medium, in the order in which they were asked for.
    pub medium: usize,
    /// The thread, numbered by first appearance.
    pub thread: usize,
    /// The operation the thread had set.
    pub operation: u64,
    /// On whose behalf.
    pub path: Path,
    /// What was done.
    pub action: Action,
}

struct Tape {
    name: String,
    initial: Arc<Vec<u8>>,
    shadow: Vec<u8>,
}

#[derive(Default)]
struct State {
    media: Vec<Tape>,
    events: Vec<Recorded>,
    threads: HashMap<usize, usize>,
    /// Contents are somebody else's business: no shadow, no initial images.
    events_only: bool,
}

/// A recording of one or several media with one order of events.
#[derive(Default)]
pub struct Recording {
    state: Mutex<State>,
}

/// One medium of a recording: attach it to every mapping of that medium.
pub struct Medium {
    recording: Arc<Recording>,
    index: usize,
}

/// The first byte in which a mapping differs from what was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the medium.
    pub medium: String,
    /// Where, in bytes.
    pub offset: usize,
    /// The byte last recorded.
    pub expected: u8,
    /// The byte in the mapping.
    pub found: u8,
}

impl Recording {
    /// An empty recording.
    pub fn new() -> Arc<Recording> {
        Arc::default()
    }

    /// An empty recording that keeps no contents: for who knows them, and looks at so many
    /// recordings that copies of whole media would cost too much. Its scripts have empty
    /// initial images, and its media no shadow to verify.
    pub fn events_only() -> Arc<Recording> {
        let recording = Recording::default();
        recording.state.lock().events_only = true;
        Arc::new(recording)
    }

    /// Takes out all events so far; the next one is number 0.
    pub fn take_events(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.state.lock().events)
    }

    /// The medium of that name, new or known.
    pub fn medium(self: &Arc<Self>, name: &str) -> Arc<Medium> {
        let mut state = self.state.lock();
        let known = state.media.iter().position(|tape| tape.name == name);
        let index = known.unwrap_or_else(|| {
            state.media.push(Tape {
                name: name.to_owned(),
                initial: Arc::default(),
                shadow: Vec::new(),
            });
            state.media.len() - 1
        });
        Arc::new(Medium {
            recording: Arc::clone(self),
            index,
        })
    }

    /// How many events there are so far.
    pub fn event_count(&self) -> usize {
        self.state.lock().events.len()
    }

    /// Forgets all events and starts again from the present contents, as if everything
    /// stored so far had reached its medium. For the end of a test's preparations.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.events.clear();
        for tape in &mut state.media {
            tape.initial = Arc::new(tape.shadow.clone());
        }
    }

    /// What happened so far, to be replayed.
    pub fn script(&self) -> Script {
        let state = self.state.lock();
        Script {
            names: state.media.iter().map(|tape| tape.name.clone()).collect(),
            initial: state
                .media
                .iter()
                .map(|tape| Arc::clone(&tape.initial))
                .collect(),
            events: state.events.clone(),
        }
    }
}

impl Medium {
    /// Its index in the recording.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Compares a mapping of this medium with what was recorded: a difference is a
    /// store that went past the recorder.
    pub fn verify_shadow(&self, view: &MappedRegion) -> Option<Difference> {
        const CHUNK_BYTES: usize = 64 << 10;
        let state = self.recording.state.lock();
        let tape = &state.media[self.index];
        let mut found = vec![0; CHUNK_BYTES];
        let shadow = &tape.shadow[..view.bytes().min(tape.shadow.len())];
        for (index, expected) in shadow.chunks(CHUNK_BYTES).enumerate() {
            let found = &mut found[..expected.len()];
            view.peek(index * CHUNK_BYTES, found);
            if found != expected {
                let at = expected.iter().zip(&*found).position(|(e, f)| e != f)?;
                return Some(Difference {
                    medium: tape.name.clone(),
                    offset: index * CHUNK_BYTES + at,
                    expected: expected[at],
                    found: found[at],
                });
            }
        }
        None
    }
}

impl Recorder for Medium {
    fn attached(&self, bytes: usize, read: &dyn Fn(&mut [u8])) {
        let mut state = self.recording.state.lock();
        if state.events_only {
            return;
        }
        let tape = &mut state.media[self.index];
        // A second mapping of the same medium sees what the first did; only what
        // reaches further is new.
        let known = tape.shadow.len();
        if bytes > known {
            let mut contents = vec![0; bytes];
            read(&mut contents);
            tape.shadow.extend_from_slice(&contents[known..]);
            Arc::make_mut(&mut tape.initial).extend_from_slice(&contents[known..]);
        }
    }

    fn record(&self, path: Path, act: &mut dyn FnMut(&mut dyn Sink)) {
        let mut state = self.recording.state.lock();
        let next = state.threads.len();
        let thread = *state.threads.entry(thread_pointer()).or_insert(next);
        act(&mut Notes {
            state: &mut state,
            medium: self.index,
            thread,
            path,
        });
    }
}

struct Notes<'s> {
    state: &'s mut State,
    medium: usize,
    thread: usize,
    path: Path,
}

impl Sink for Notes<'_> {
    fn note(&mut self, event: Event<'_>) {
        let action = match event {
            Event::Store {
                kind,
                offset,
                bytes,
            } => {
                if !self.state.events_only {
                    let shadow = &mut self.state.media[self.medium].shadow;
                    shadow[offset..offset + bytes.len()].copy_from_slice(bytes);
                }
                Action::Store {
                    kind,
                    offset,
                    bytes: bytes.into(),
                }
            }
            Event::Flush { offset, lines } => Action::Flush { offset, lines },
            Event::Fence => Action::Fence,
        };
        self.state.events.push(Recorded {
            medium: self.medium,
            thread: self.thread,
            operation: operation(),
            path: self.path,
            action,
        });
    }
}

/// A finished recording.
#[derive(Debug, Clone)]
pub struct Script {
    names: Vec<String>,
    initial: Vec<Arc<Vec<u8>>>,
    events: Vec<Recorded>,
}

impl Script {
    /// All events, in order. "At event `n`" means: events `0..n` have happened.
    pub fn events(&self) -> &[Recorded] {
        &self.events
    }

    /// Names of the media, by index.
    pub fn media(&self) -> &[String] {
        &self.names
    }

    /// The contents of a medium before the first event.
    pub fn initial(&self, medium: usize) -> &[u8] {
        &self.initial[medium]
    }

    /// Starts a replay before the first event.
    pub fn replay(&self) -> Replay<'_> {
        Replay::new(self)
    }

    /// What medium `medium` holds if power fails at event `at_event` and `choice` of
    /// what is uncertain then survives. To look at many states step one [`Replay`].
    ///
    /// # Panics
    /// If there is no such event or medium.
    pub fn crash_image(
        &self,
        at_event: usize,
        medium: usize,
        rules: &MediaRules,
        choice: &Choice<'_>,
    ) -> Vec<u8> {
        let mut replay = self.replay();
        replay.advance_to(at_event);
        replay.cut(rules).image(medium, choice)
    }
}
