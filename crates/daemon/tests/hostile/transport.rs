//! The socket: messages that are none, floods, descriptors.
