use terrane_format::block_ptr::Normal;

/// The two kinds of blocks that the cache tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks with one copy.
    Data = 0,
    /// Blocks with two copies.
    Metadata = 1,
}

impl Kind {
    /// Both kinds, by number.
    pub const ALL: [Kind; 2] = [Kind::Data, Kind::Metadata];

    /// Metadata has two copies, data one.
    pub fn of(ptr: &Normal) -> Kind {
        if ptr.copies().nth(1).is_some() { Kind::Metadata } else { Kind::Data }
    }

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Metadata => "metadata",
        }
    }
}
