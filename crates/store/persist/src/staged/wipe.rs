//! An area that is none any more: the volume has NVM now.

use super::PAGE_BYTES;
use super::error::Result;
use super::layout::AreaLayout;
use shale_block::TierDevice;
use shale_format::staged::AreaHeader;

/// Overwrites the headers of the area of a volume at byte `at` of a device, durably: first the older one, so that a power cut leaves the
/// newest checkpoint or none. What is no header of this very area stays. Says whether there was one.
///
/// # Errors
/// What the device says.
pub fn wipe_area(device: &dyn TierDevice, at: u64, uuid: [u8; 16]) -> Result<bool> {
    let mut found = Vec::new();
    for n in 0..2 {
        let (byte, mut block) = (at + AreaLayout::header_at(n), [0; PAGE_BYTES]);
        if byte + PAGE_BYTES as u64 > device.bytes() {
            break;
        }
        device.read(byte, &mut block)?;
        if let Ok(header) = AreaHeader::decode(&block, n)
            && header.uuid == uuid
            && header.at == at
        {
            found.push((header.checkpoint, byte));
        }
    }
    found.sort_unstable();
    for (_, byte) in &found {
        device.write(*byte, &[0; PAGE_BYTES])?;
        device.flush()?;
    }
    Ok(!found.is_empty())
}
