//! Access to the NVM tier by block address.
