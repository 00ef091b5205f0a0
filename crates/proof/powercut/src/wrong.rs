//! What is wrong with Shale, in words.

/// Something of Shale's that is wrong, as found while a workload ran or an image was recovered.
pub type Wrong = String;

/// What was to be found, or what is wrong with Shale.
pub type Checked<T> = std::result::Result<T, Wrong>;
