//! What a client may still write: a bucket of tokens, in bytes (see [`super::limits`]).

/// Parts of a second that fit the bucket.
pub const BURST_PART: u64 = 8;
/// Least bytes that fit the bucket: a grant of blocks.
const BURST_MIN: u64 = 64 << 10;
/// Tokens are counted in this part of a byte.
pub const PART: i128 = 1_000_000_000;
/// Parts of a second that a client is let go on for at least when it has waited.
const SLICE_PART: u64 = 50;
/// Longest wait between two questions.
const WAIT_MAX_NS: u64 = 100_000_000;

/// What a client may still write.
#[derive(Debug, Default)]
pub struct Bucket {
    /// Bytes a second; 0: no limit.
    pub rate: u64,
    /// In parts of a byte.
    pub tokens: i128,
    /// When it was filled last.
    pub at_ns: u64,
    /// Position of the log at that time.
    pub seen: u64,
    /// How long it has waited in all, in nanoseconds.
    pub waited_ns: u64,
    /// Blocks that were granted before there was a limit, and may not be used yet.
    pub uncounted: u64,
    /// The client has to hear that it is to return those.
    pub give_back: bool,
    /// The client has to pause once until then, whatever its limit; 0: it has not.
    pub hold_until_ns: u64,
}

impl Bucket {
    /// Most bytes that it may write at once.
    pub fn burst(&self) -> u64 {
        (self.rate / BURST_PART).max(BURST_MIN)
    }

    /// Adds what `now_ns` brings, and takes away what was published since.
    pub fn fill(&mut self, now_ns: u64, published: u64) {
        let passed = now_ns.saturating_sub(self.at_ns);
        self.tokens += i128::from(passed) * i128::from(self.rate);
        self.tokens -= i128::from(published.saturating_sub(self.seen)) * PART;
        self.tokens = self.tokens.min(i128::from(self.burst()) * PART);
        (self.at_ns, self.seen) = (now_ns, published);
    }

    /// The log position up to which the client may go on.
    pub fn allowed(&self) -> u64 {
        match self.rate {
            _ if self.hold_until_ns > 0 => 0,
            0 => u64::MAX,
            _ => self.seen + (self.tokens / PART).max(0) as u64,
        }
    }

    /// How long the client has to wait before it asks again; 0: it may go on.
    pub fn wait_ns(&mut self) -> u64 {
        let held = std::mem::take(&mut self.hold_until_ns);
        if held > self.at_ns {
            return held - self.at_ns;
        }
        if self.rate == 0 || self.tokens >= PART {
            return 0;
        }
        let slice = (self.rate / SLICE_PART).max(1);
        let lacking = i128::from(slice) * PART - self.tokens;
        let ns = (lacking / i128::from(self.rate)).clamp(1, i128::from(WAIT_MAX_NS)) as u64;
        self.waited_ns += ns;
        ns
    }
}
