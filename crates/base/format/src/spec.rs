//! Every structure that is persisted: what `docs/SPEC.md` shows.

use crate::layout::Table;

/// Every persisted structure, in the order in which SPEC shows them.
pub fn tables() -> Vec<Table> {
    vec![
        crate::volume::superblock::Superblock::TABLE,
        crate::volume::superblock::TierTable::TABLE,
        crate::volume::superblock::DeviceEntry::TABLE,
        crate::volume::superblock::LowerTables::TABLE,
        crate::volume::superblock::RootBlock::TABLE,
        crate::volume::bitmap::BitmapHeader::TABLE,
        crate::volume::device_table::DeviceTable::TABLE,
        crate::volume::device_table::DevicePlace::TABLE,
        crate::volume::zone::ZoneEntry::TABLE,
        crate::volume::zone::DeviceLabel::TABLE,
        crate::volume::journal::JournalHeader::TABLE,
        crate::volume::journal::JournalEntry::TABLE,
        crate::files::inode::Inode::TABLE,
        crate::files::extent::ExtentRoot::TABLE,
        crate::files::extent::Extent::TABLE,
        crate::files::tree::NodeHeader::TABLE,
        crate::files::tree::ChildEntry::TABLE,
        crate::files::dirent::DirentEntry::TABLE,
        crate::files::xattr::XattrHeader::TABLE,
        crate::files::xattr::XattrEntry::TABLE,
        crate::files::xattr::XattrList::TABLE,
        crate::log::LogHeader::TABLE,
        crate::log::LogSlot::TABLE,
        crate::record::RecordHeader::TABLE,
        crate::record::CreateBody::TABLE,
        crate::record::LinkBody::TABLE,
        crate::record::RenameBody::TABLE,
        crate::record::StealBody::TABLE,
        crate::record::SetAttrBody::TABLE,
        crate::record::XattrBody::TABLE,
        crate::record::FallocateBody::TABLE,
        crate::staged::AreaHeader::TABLE,
        crate::staged::BatchHeader::TABLE,
        crate::staged::PieceEntry::TABLE,
        crate::staged::PlacedEntry::TABLE,
    ]
}
