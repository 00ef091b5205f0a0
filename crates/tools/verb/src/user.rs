//! Users of this machine.

use nix::unistd::User;

/// The number of a user, by name or number.
///
/// # Errors
/// There is no such user, and it is no number that one can have.
pub fn parse_user(text: &str) -> Result<u32, String> {
    let named = User::from_name(text).map_err(|e| format!("user '{text}': {e}"))?;
    let uid = match named {
        Some(user) => Some(user.uid.as_raw()),
        None => text.parse().ok(),
    };
    uid.filter(|uid| *uid != u32::MAX).ok_or_else(|| {
        format!("'{text}' is no user of this machine; users that are known elsewhere: by number")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_name_and_number() {
        for (user, uid) in [("root", 0), ("nobody", 65_534), ("100100", 100_100)] {
            assert_eq!(parse_user(user), Ok(uid), "{user}");
        }
        for user in ["no-such-user", "", "-1", "4294967295", "root\0"] {
            assert!(parse_user(user).is_err(), "{user}");
        }
    }
}
