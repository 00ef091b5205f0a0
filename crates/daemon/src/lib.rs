//! Shale: the shared side: digest, lease, recover, check
