//! Digest: from update logs to the volume.
