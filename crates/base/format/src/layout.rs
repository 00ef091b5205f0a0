//! Layouts as data: what `docs/SPEC.md` is generated from.

/// One field of a layout.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in the source.
    pub name: &'static str,
    /// Byte offset in the structure.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    /// What it holds.
    pub meaning: &'static str,
}

/// One structure.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Name in the source.
    pub name: &'static str,
    /// Bytes in all.
    pub bytes: usize,
    /// What it is.
    pub about: &'static str,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// Declares a persisted structure: `repr(C)`, zerocopy derives, asserted size,
/// and its table.
macro_rules! layout {
    (
        #[doc = $about:literal]
        $(#[doc = $more:literal])*
        pub struct $name:ident: $bytes:literal {
            $( #[doc = $meaning:literal] pub $field:ident: $ty:ty, )*
        }
    ) => {
        #[doc = $about]
        $(#[doc = $more])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name { $( #[doc = $meaning] pub $field: $ty, )* }
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl $name {
            /// Bytes on media.
            pub const BYTES: usize = $bytes;
            /// The layout as a table of `docs/SPEC.md`.
            pub const TABLE: $crate::layout::Table = $crate::layout::Table {
                name: stringify!($name),
                bytes: $bytes,
                about: $about,
                fields: &[ $( $crate::layout::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field),
                    bytes: size_of::<$ty>(),
                    meaning: $meaning,
                }, )* ],
            };
        }
    };
}
pub(crate) use layout;
